#compdef gpuipcd
# SPDX-License-Identifier: Apache-2.0
# zsh completion for gpuipcd(8)

_arguments \
        '(- *)'{-h,--help}'[every option with its default]' \
        '(- *)--version[the version]' \
        '--test-config[check the configuration]' \
        '--config=[the file to read instead]:file:_files' \
@options@
