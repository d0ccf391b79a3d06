# SPDX-License-Identifier: Apache-2.0
# gpuipcctl for bash: lists of words, and cases of a case statement.
function row(    n, words, i) {
        if ($1 == "verb") {
                add("verbs", $2, " ")
                order[++n_verbs] = $2
                n = split($3, words, " ")
                for (i = 1; i <= n && words[i] != "[--"; i++)
                        add("operands", "        " $2 "," (i - 1) ") echo " operand_kind($2, words[i]) " ;;", "\n")
        } else if ($1 == "code") {
                add("codes", $2, " ")
        } else if ($1 == "option") {
                options[$2] = options[$2] " --" $4
                if ($5 == "KIND")
                        fill["kinds"] = listed($6)
                if ($5 != "")
                        add("values", "        " value_pattern($2, $3, $4) ") echo " value_kind($2, $4, $5) " ;;", "\n")
        }
}

function value_pattern(verb, letter, name) {
        if (verb == "*")
                return (letter == "" ? "" : "*\" -" letter "\" | ") "*\" --" name "\""
        return (letter == "" ? "" : "\"" verb " -" letter "\" | ") "\"" verb " --" name "\""
}

function filled(    i) {
        for (i = 1; i <= n_verbs; i++)
                if (options[order[i]] != "")
                        add("options", "        " order[i] ") echo" options[order[i]] " ;;", "\n")
        add("options", "        -) echo" options["-"] " ;;", "\n")
        fill["common"] = substr(options["*"], 2)
}
