# SPDX-License-Identifier: Apache-2.0
"""Reads a varlink interface definition by the grammar of varlink.org. Raises ValueError where it does not parse."""

import re

TOKEN = re.compile(r"\s*(?:#[^\n]*\n?\s*)*(->|\[string\]|\[\]|[A-Za-z][A-Za-z0-9_.-]*|[?(),:]|\Z)")
INTERFACE = re.compile(r"[A-Za-z](-*[A-Za-z0-9])*(\.[A-Za-z0-9](-*[A-Za-z0-9])*)+")
MEMBER = re.compile(r"[A-Z][A-Za-z0-9]*")
FIELD = re.compile(r"[A-Za-z](_?[A-Za-z0-9])*")
BASE_TYPES = {"bool", "int", "float", "string", "object"}


class Parser:
    def __init__(self, text):
        self.tokens = []
        at = 0
        while at < len(text):
            match = TOKEN.match(text, at)
            if not match:
                raise ValueError(f"no token at {text[at:at + 40]!r}")
            if match.group(1):
                self.tokens.append(match.group(1))
            elif match.end() == at:
                break
            at = match.end()

    def peek(self):
        return self.tokens[0] if self.tokens else None

    def take(self, *wanted):
        token = self.tokens.pop(0) if self.tokens else None
        if wanted and token not in wanted:
            raise ValueError(f"{' or '.join(wanted)} expected, {token!r} found")
        return token

    def name(self, pattern):
        token = self.take()
        if not token or not pattern.fullmatch(token):
            raise ValueError(f"{token!r} is no valid name")
        return token

    def type(self):
        """Canonical text: "?[]Device", "(rw, ro)", "(a: int)"."""
        if self.peek() == "?":
            self.take()
            if self.peek() == "?":
                raise ValueError("an optional optional")
            return "?" + self.type()
        if self.peek() in ("[]", "[string]"):
            return self.take() + self.type()
        if self.peek() == "(":
            return self.group()
        token = self.take()
        if token in BASE_TYPES or MEMBER.fullmatch(token or ""):
            return token
        raise ValueError(f"{token!r} is no type")

    def group(self):
        """A struct or an enum."""
        self.take("(")
        members, kinds = [], set()
        while self.peek() != ")":
            name = self.name(FIELD)
            if self.peek() == ":":
                self.take()
                members.append(f"{name}: {self.type()}")
                kinds.add("struct")
            else:
                members.append(name)
                kinds.add("enum")
            if self.peek() != ")":
                self.take(",")
                if self.peek() == ")":
                    raise ValueError("a comma before )")
        self.take(")")
        names = [member.partition(":")[0] for member in members]
        if len(kinds) > 1 or len(set(names)) != len(names):
            raise ValueError(f"mixed or repeated members: {members}")
        return f"({', '.join(members)})"

    def interface(self):
        self.take("interface")
        parsed = {"interface": self.name(INTERFACE), "type": {}, "method": {}, "error": {}}
        while self.peek():
            kind = self.take("type", "method", "error")
            name = self.name(MEMBER)
            if name in parsed[kind]:
                raise ValueError(f"{kind} {name} twice")
            value = self.group()
            if kind == "method":
                self.take("->")
                value = (value, self.group())
            parsed[kind][name] = value
        self.check_references(parsed)
        return parsed

    @staticmethod
    def check_references(parsed):
        texts = list(parsed["type"].values()) + list(parsed["error"].values())
        texts += [side for method in parsed["method"].values() for side in method]
        for text in texts:
            for used in re.findall(r": (?:\?|\[\]|\[string\])*([A-Z]\w*)", text):
                if used not in parsed["type"]:
                    raise ValueError(f"type {used} is used and not defined")


def parse(text):
    """{"interface": name, "type": {name: text}, "method": {name: (in, out)}, "error": {name: text}}"""
    return Parser(text).interface()
