/* Every option of a job: one row says its name, type, range, default, unit and help, and drives parsing, --set, the
 * environment, --print-config, the README's reference and the man page. Constant; any thread.
 * To add an option: a field in job.h and a row in option_table.c (rows of one section, and of one nested mapping,
 * stand together). */
#ifndef SHOAL_CONFIG_OPTION_TABLE_H
#define SHOAL_CONFIG_OPTION_TABLE_H

#include <stddef.h>

struct errbuf;

enum option_type {
    OPTION_STRING,  /* char * */
    OPTION_PATH,    /* char * */
    OPTION_INT,     /* int64_t */
    OPTION_U64,     /* uint64_t */
    OPTION_FLOAT,   /* double */
    OPTION_BOOL,    /* int, 0 or 1 */
    OPTION_ENUM,    /* enum, the index in choices */
    OPTION_INTS,    /* int64_t *, with an int count elsewhere */
    OPTION_STRINGS, /* struct job_strings */
    OPTION_TYPES
};

enum option_flag {
    OPTION_REQUIRED = 1,      /* a training job must say it (unless data.kind and model.kind are none) */
    OPTION_LOW_OPEN = 2,      /* value > low rather than >= low */
    OPTION_HIGH_OPEN = 4,     /* value < high rather than <= high */
    OPTION_RESUME_FIXED = 8,  /* a resume may not change it */
    OPTION_ALWAYS_NEEDED = 16 /* required even without data and model */
};

struct option {
    const char *section; /* "" for the top level */
    const char *name;    /* within the section; nested mappings as "train.images" */
    enum option_type type;
    size_t offset;                    /* of the field in struct job */
    size_t count_offset;              /* OPTION_INTS: of its int count */
    double low, high;                 /* of numbers, also of a list's items; infinite when there is no limit */
    double multiple;                  /* a number must be a multiple of it; 0: any */
    unsigned flags;                   /* enum option_flag */
    const char *fallback;             /* the default as text; lists as "a,b"; NULL: none */
    const char *const *kind_fallback; /* the default by optimizer.kind (enum order), NULL entries: required */
    const char *zero_word;            /* this word says 0 and 0 is written as it ("auto") */
    const char *const *choices;       /* OPTION_ENUM and OPTION_STRING: allowed values, NULL-terminated */
    const char *only;                 /* "optimizer.kind=adam|adamw": without effect elsewhere; NULL: always used */
    const char *unit, *help;
};

enum { OPTION_PATH_MAX = 64 };

int option_count(void);
const struct option *option_at(int index); /* 0 <= index < option_count() */
int option_index(const struct option *option);
/* By full name ("optimizer.lr"), or NULL. */
const struct option *option_find(const char *path);
/* Writes the full name. */
void option_path(const struct option *option, char out[OPTION_PATH_MAX]);
/* 1 when `path` is a mapping that holds options ("data", "data.train", "" too). */
int option_is_section(const char *path);
/* "SHOAL_OPTIMIZER_LR". */
void option_environment_name(const struct option *option, char out[OPTION_PATH_MAX + 8]);
/* "a number > 0", "one of idx, csv". */
void option_expected(const struct option *option, char *out, size_t out_bytes);
const char *option_type_text(enum option_type type);

/* The sections in order, NULL past the end; "" is the first. */
const char *option_section(int index);

#endif
