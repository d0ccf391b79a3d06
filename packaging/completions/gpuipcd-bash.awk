# SPDX-License-Identifier: Apache-2.0
# gpuipcd for bash.
function row(    action) {
        add("options", "--" $2, " ")
        if ($3 == "PATH")
                action = files()
        else if ($3 == "USER...")
                action = "mapfile -t COMPREPLY < <(compgen -u -- \"$cur\"); return"
        else if ($3 == "GROUP...")
                action = "mapfile -t COMPREPLY < <(compgen -g -- \"$cur\"); return"
        else if ($3 ~ /^[a-z]+(\|[a-z]+)+$/)
                action = "words=\"" words_of($3) "\""
        else if ($3 ~ /^(N|BYTES|TIME|BYTES\|PERCENT%|UID-UID\.\.\.|PREFIX:USER\.\.\.)$/)
                action = "return"
        else
                fail("key --" $2 ": no completion is known for a value called " $3)
        add("values", "        --" $2 ") " action " ;;", "\n")
}

function files() {
        return "mapfile -t COMPREPLY < <(compgen -f -- \"$cur\"); return"
}

function words_of(text) {
        gsub(/\|/, " ", text)
        return text
}

function filled() {
        add("values", "        --config) " files() " ;;", "\n")
        add("options", "--config --test-config --help --version", " ")
}
