/* The text of a .npy header: a Python dict literal with the keys descr, fortran_order and shape. Pure. */
#ifndef SHOAL_FILES_NPY_HEADER_H
#define SHOAL_FILES_NPY_HEADER_H

#include <stddef.h>
#include <stdint.h>

struct errbuf;

struct npy_header {
    char descr[16]; /* "<f4" */
    int fortran_order;
    int dims;
    int64_t shape[8];
};
/* STATUS_FORMAT with what was found. */
int npy_header_parse(const char *text, size_t bytes, struct npy_header *header, struct errbuf *err);

#endif
