# SPDX-License-Identifier: Apache-2.0
# gpuipcctl for zsh: specifications of _arguments.
function row(    n, words, i, kind) {
        if ($1 == "verb") {
                add("verbs", "                '" $2 ":" quoted($4) "'", "\n")
                add("names", $2, " ")
                order[++n_verbs] = $2
                n = split($3, words, " ")
                for (i = 1; i <= n && words[i] != "[--"; i++) {
                        operands[$2] = operands[$2] " '" i (words[i] ~ /^\[/ ? "::" : ":") \
                                tolower_plain(words[i]) ":" "\001" operand_kind($2, words[i]) "\002'"
                }
                if (i <= n)
                        operands[$2] = operands[$2] " '*::command:_normal'"
        } else if ($1 == "code") {
                add("codes", $2, " ")
        } else if ($1 == "option") {
                if ($5 == "KIND")
                        fill["kinds"] = listed($6)
                kind = $5 == "" ? "" : ":" tolower($5) ":" "\001" value_kind($2, $4, $5) "\002"
                options[$2] = options[$2] " " specification($3, $4, $6, kind)
        }
}

function specification(letter, name, help, value,    first) {
        first = name ~ /^(help|version)$/ ? "(- *)" : letter == "" ? "" : "(-" letter " --" name ")"
        if (letter == "")
                return "'" first "--" name "[" quoted(help) "]" value "'"
        return "'" first "'{-" letter ",--" name "}'[" quoted(help) "]" value "'"
}

function tolower_plain(word) {
        gsub(/[][]/, "", word)
        gsub(/\|/, " or ", word)
        return tolower(word)
}

# Only at the end is it known which words there are.
function acted(text) {
        gsub(/\001(PATH|FILE)\002/, "_files", text)
        gsub(/\001UID\002/, "_users", text)
        gsub(/\001BUFFER\002/, "_gpuipcctl_buffers", text)
        gsub(/\001SESSION\002/, "_gpuipcctl_sessions", text)
        gsub(/\001UUID\002/, "_gpuipcctl_devices", text)
        gsub(/\001KIND\002/, "(" fill["kinds"] ")", text)
        gsub(/\001VERB\002/, "(" fill["names"] ")", text)
        gsub(/\001CODE\002/, "(" fill["codes"] ")", text)
        gsub(/\001[A-Z]+\002/, "", text)
        return text
}

function filled(    i) {
        fill["common"] = acted(substr(options["*"], 2))
        fill["lone"] = acted(substr(options["-"], 2))
        for (i = 1; i <= n_verbs; i++)
                add("cases", "        " order[i] ") _arguments $common" acted(options[order[i]] operands[order[i]]) " ;;", "\n")
}
