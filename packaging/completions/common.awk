# SPDX-License-Identifier: Apache-2.0
# First the tables, then the template: a @word@ in the template stands for fill["word"]. Each shell's file brings row() and filled().
BEGIN { FS = "\t" }

NR == FNR { row(); next }
FNR == 1 { filled() }
{
        line = $0
        while (match(line, /@[a-z]+@/)) {
                word = substr(line, RSTART + 1, RLENGTH - 2)
                if (!(word in fill))
                        fail("the template asks for @" word "@, which nothing fills")
                printf "%s%s", substr(line, 1, RSTART - 1), fill[word]
                line = substr(line, RSTART + RLENGTH)
        }
        print line
}

function fail(why) {
        print "completions: " why > "/dev/stderr"
        failed = 1
        exit 1
}

function add(word, text, between) {
        fill[word] = fill[word] (fill[word] == "" ? "" : between) text
}

# The words of "auto (default), memfd, cuda-fd or cuda-ipc".
function listed(text) {
        gsub(/\(default\)|,| or /, " ", text)
        gsub(/  +/, " ", text)
        return text
}

# What an operand is, by the name the synopsis gives it. put makes a buffer, so that no name which is there will do.
function operand_kind(verb, operand) {
        gsub(/[][]/, "", operand)
        if (operand ~ /^(NAME|NAME\|ID)$/)
                return verb == "put" ? "NEW" : "BUFFER"
        if (operand ~ /^(FILE|SIZE|SESSION|VERB|CODE)$/)
                return operand
        fail("verb " verb ": no completion is known for the operand " operand)
}

# What an option's value is, by the name the table gives it.
function value_kind(verb, name, argument) {
        if (argument == "NAME")
                return verb == "alloc" ? "NEW" : "BUFFER"
        if (argument ~ /^(PATH|UID|UUID|KIND|DURATION|MODE|SIZE|SECONDS|N|TEXT|JSON)$/)
                return argument
        fail("option --" name ": no completion is known for a value called " argument)
}

# Text between single quotes in a specification of zsh.
function quoted(text) {
        gsub(/'/, "’", text)
        gsub(/\[/, "\\[", text)
        gsub(/\]/, "\\]", text)
        gsub(/:/, "\\:", text)
        return text
}
