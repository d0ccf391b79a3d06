# SPDX-License-Identifier: Apache-2.0
# gpuipcd for zsh: specifications of _arguments.
function row(    action) {
        action = ""
        if ($3 == "PATH")
                action = "_files"
        else if ($3 == "USER...")
                action = "_users"
        else if ($3 == "GROUP...")
                action = "_groups"
        else if ($3 ~ /^[a-z]+(\|[a-z]+)+$/)
                action = "(" words_of($3) ")"
        else if ($3 !~ /^(N|BYTES|TIME|BYTES\|PERCENT%|UID-UID\.\.\.|PREFIX:USER\.\.\.)$/)
                fail("key --" $2 ": no completion is known for a value called " $3)
        add("options", "        '--" $2 "=[" quoted($4) "]:" (action ~ /^\(/ ? "value" : tolower(words_of($3))) ":" action "'", " \\\n")
}

function words_of(text) {
        gsub(/\|/, " ", text)
        gsub(/:/, " ", text)
        return text
}

function filled() {}
