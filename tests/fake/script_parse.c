/* SPDX-License-Identifier: Apache-2.0 */
/* The language of the script: lines of words. Runs under the script's lock; ends the process at the first mistake. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "script.h"

#define WORDS 24

struct line {
        const char *origin;
        int number;
        const char *text;
        char *words[WORDS]; /* blanks and quotes taken away */
        int n_words;
};

#define wrong(line, format, ...) fake_die("%s:%d: " format ": %s", (line)->origin, (line)->number, __VA_ARGS__, (line)->text)

static void split(char *text, struct line *line) {
        char *to = text, *at = text;

        for (;;) {
                while (isspace((unsigned char)*at))
                        at++;
                if (!*at || *at == '#')
                        return;
                if (line->n_words == WORDS)
                        wrong(line, "more than %d words", WORDS);
                line->words[line->n_words++] = to;
                for (bool quoted = false; *at && (quoted || !isspace((unsigned char)*at)); at++)
                        if (*at == '"')
                                quoted = !quoted;
                        else
                                *to++ = *at;
                if (*at)
                        at++;
                *to++ = '\0';
        }
}

static int64_t number_of(const struct line *line, const char *word) {
        static const char units[] = "KMGT";
        char *end;
        long long value = strtoll(word, &end, 10);
        const char *unit = *end ? strchr(units, *end) : NULL;

        if (end == word || (*end && (!unit || end[1])))
                wrong(line, "\"%s\" is not a number", word);
        return (int64_t)value << (unit ? 10 * (unit - units + 1) : 0);
}

static bool flag_of(const struct line *line, const char *word) {
        if (strcmp(word, "yes") != 0 && strcmp(word, "no") != 0)
                wrong(line, "\"%s\" is neither yes nor no", word);
        return *word == 'y';
}

static void copy(const struct line *line, const char *word, char *to, size_t n) {
        if (strlen(word) >= n)
                wrong(line, "\"%s\" is too long", word);
        strcpy(to, word);
}

/* Cuts "key=value" in two. */
static char *value_of(const struct line *line, char *word) {
        char *value = strchr(word, '=');
        if (!value)
                wrong(line, "KEY=VALUE expected, not \"%s\"", word);
        *value = '\0';
        return value + 1;
}

static struct device_script *add_device(struct script *script, const struct line *line) {
        if (script->n_devices == MACHINE_DEVICES)
                wrong(line, "more than %d devices", MACHINE_DEVICES);
        struct device_script *device = &script->devices[script->n_devices];
        *device = (struct device_script){ .name = "Fake GPU",
                                          .total_bytes = INT64_C(16) << 30,
                                          .scrub = true,
                                          .vmm = true,
                                          .fd = true,
                                          .memops = true,
                                          .peer = true };
        snprintf(device->uuid, sizeof(device->uuid), "GPU-fa4e0000-0000-4000-8000-%012x", script->n_devices++);
        return device;
}

static void read_attribute(struct device_script *device, const struct line *line, const char *value) {
        int *n = &device->n_attributes;

        if (*n == DEVICE_ATTRIBUTES || sscanf(value, "%d:%d", &device->attributes[*n].number, &device->attributes[*n].value) != 2)
                wrong(line, "attribute \"%s\"", value);
        (*n)++;
}

static bool device_flag(struct device_script *device, const struct line *line, const char *key, const char *value) {
        const struct {
                const char *key;
                bool *flag;
        } flags[] = { { "scrub", &device->scrub },   { "vmm", &device->vmm },   { "fd", &device->fd },
                      { "memops", &device->memops }, { "peer", &device->peer }, { "integrated", &device->integrated } };

        for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
                if (strcmp(key, flags[i].key) == 0) {
                        *flags[i].flag = flag_of(line, value);
                        return true;
                }
        return false;
}

static void read_device(struct script *script, struct line *line) {
        struct device_script *device = add_device(script, line);

        for (int i = 1; i < line->n_words; i++) {
                char *key = line->words[i], *value = value_of(line, key);
                if (device_flag(device, line, key, value))
                        continue;
                if (strcmp(key, "uuid") == 0)
                        copy(line, value, device->uuid, sizeof(device->uuid));
                else if (strcmp(key, "name") == 0)
                        copy(line, value, device->name, sizeof(device->name));
                else if (strcmp(key, "total") == 0)
                        device->total_bytes = number_of(line, value);
                else if (strcmp(key, "used") == 0)
                        device->used_bytes = number_of(line, value);
                else if (strcmp(key, "virtualization") == 0)
                        device->virtualization = (int)number_of(line, value);
                else if (strcmp(key, "attribute") == 0)
                        read_attribute(device, line, value);
                else
                        wrong(line, "no key \"%s\" of a device", key);
        }
}

static void read_rule_key(struct rule *rule, const struct line *line, const char *key, const char *value) {
        if (strcmp(key, "device") == 0)
                copy(line, value, rule->device_name, sizeof(rule->device_name));
        else if (strcmp(key, "exe") == 0)
                copy(line, value, rule->exe, sizeof(rule->exe));
        else if (strcmp(key, "nth") == 0)
                rule->nth = (unsigned long)number_of(line, value);
        else if (strcmp(key, "from") == 0)
                rule->from = (unsigned long)number_of(line, value);
        else if (strcmp(key, "delay") == 0)
                rule->delay_ms = (unsigned long)number_of(line, value);
        else if (strcmp(key, "hang-while") == 0)
                rule->hang_while = script_copy(value);
        else if (strcmp(key, "hang-until") == 0)
                rule->hang_until = script_copy(value);
        else if (strcmp(key, "global") == 0)
                rule->global = flag_of(line, value);
        else if (strcmp(key, "fail") == 0) {
                rule->fails = true;
                rule->code = (int)number_of(line, value);
        } else
                wrong(line, "no key \"%s\" of a fault", key);
}

static void keep_count(struct rule *rule, const struct script *previous) {
        for (struct rule *old = previous ? previous->rules : NULL; old; old = old->next)
                if (strcmp(old->text, rule->text) == 0) {
                        rule->count = old->count;
                        return;
                }
        rule->count = script_memory(sizeof(*rule->count));
}

static void read_rule(struct script *script, struct line *line, const struct script *previous) {
        if (line->n_words < 3)
                wrong(line, "%s", "entry point and keys expected");
        if (!entry_known(line->words[1]))
                wrong(line, "no entry point \"%s\"", line->words[1]);
        struct rule *rule = script_memory(sizeof(*rule));
        rule->device = -1;
        rule->text = script_copy(line->text);
        copy(line, line->words[1], rule->entry, sizeof(rule->entry));
        for (int i = 2; i < line->n_words; i++) {
                char *key = line->words[i], *value = value_of(line, key);
                read_rule_key(rule, line, key, value);
        }
        keep_count(rule, previous);
        struct rule **end = &script->rules;
        while (*end)
                end = &(*end)->next;
        *end = rule;
}

static void read_statement(struct script *script, struct line *line, const struct script *previous) {
        const char *what = line->words[0];

        if (strcmp(what, "device") == 0)
                return read_device(script, line);
        if (strcmp(what, "on") == 0)
                return read_rule(script, line, previous);
        if (line->n_words != 2)
                wrong(line, "one word expected after \"%s\"", what);
        const char *value = line->words[1];
        if (strcmp(what, "devices") == 0) {
                for (int64_t n = number_of(line, value); n > 0; n--)
                        add_device(script, line);
        } else if (strcmp(what, "state") == 0)
                copy(line, value, script->state, sizeof(script->state) - 64);
        else if (strcmp(what, "driver") == 0)
                script->driver_version = (int)number_of(line, value);
        else if (strcmp(what, "runtime") == 0)
                script->runtime_version = (int)number_of(line, value);
        else if (strcmp(what, "system") == 0)
                copy(line, value, script->system, sizeof(script->system));
        else if (strcmp(what, "init") == 0)
                script->init_bytes = number_of(line, value);
        else if (strcmp(what, "context") == 0)
                script->context_bytes = number_of(line, value);
        else if (strcmp(what, "cloexec") == 0)
                script->cloexec = flag_of(line, value);
        else if (strcmp(what, "log") == 0)
                script->log = flag_of(line, value);
        else
                wrong(line, "no statement \"%s\"", what);
}

/* Faults name devices by number or UUID, and may stand before them. */
static void resolve_devices(struct script *script, const char *origin) {
        for (struct rule *rule = script->rules; rule; rule = rule->next) {
                char *end;
                long number = strtol(rule->device_name, &end, 10);
                if (!rule->device_name[0])
                        continue;
                for (int i = 0; i < script->n_devices; i++)
                        if (*end ? strcmp(rule->device_name, script->devices[i].uuid) == 0 : number == i)
                                rule->device = i;
                if (rule->device < 0)
                        fake_die("%s: no device \"%s\": %s", origin, rule->device_name, rule->text);
        }
}

struct script *script_parse(const char *text, const char *origin, const struct script *previous) {
        struct script *script = script_memory(sizeof(*script));
        char *copied = script_copy(text), *rest = copied;
        bool devices = false;
        int number = 0;

        *script = (struct script){ .driver_version = 13000,
                                   .runtime_version = 13000,
                                   .system = "580.00.00",
                                   .init_bytes = INT64_C(4) << 20,
                                   .context_bytes = INT64_C(523) << 20,
                                   .log = true };
        for (char *one; (one = strsep(&rest, "\n"));) {
                struct line line = { .origin = origin, .number = ++number, .text = one };
                char *words = script_copy(one);
                split(words, &line);
                if (line.n_words > 0) {
                        devices = devices || strncmp(line.words[0], "device", 6) == 0;
                        read_statement(script, &line, previous);
                }
                free(words);
        }
        if (!devices)
                for (int i = 0; i < 2; i++)
                        add_device(script, &(struct line){ .origin = origin, .text = "" });
        resolve_devices(script, origin);
        free(copied);
        return script;
}
