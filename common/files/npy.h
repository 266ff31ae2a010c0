/* NumPy's .npy files, versions 1.0 and 2.0 (numpy.lib.format): one array, little-endian f4 f8 i1 i2 i4 i8 u1 u2 u4
 * u8, C order, at most 8 dimensions. Reader by mmap; shape, dtype and file size are checked against each other
 * before anything is used. Anything else that NumPy may store (big-endian, Fortran order, structured types,
 * objects) is an error that says so. An open npy is read-only: any thread. */
#ifndef SHOAL_FILES_NPY_H
#define SHOAL_FILES_NPY_H

#include <stddef.h>
#include <stdint.h>

struct errbuf;

enum npy_dtype { NPY_F4, NPY_F8, NPY_I1, NPY_I2, NPY_I4, NPY_I8, NPY_U1, NPY_U2, NPY_U4, NPY_U8, NPY_DTYPES };

struct npy_shape {
    enum npy_dtype dtype;
    int dims; /* 0: a scalar, seen as one row of one element */
    int64_t shape[8];
    int64_t rows;         /* shape[0] */
    int64_t row_elements; /* product of the others */
};

struct npy;                                                           /* an open file; owns its mapping */
int npy_open(struct npy **npy, const char *path, struct errbuf *err); /* STATUS_IO, STATUS_FORMAT */
/* The same checks on memory (fuzzing); bytes borrowed. */
int npy_parse(struct npy **npy, const void *bytes, size_t count, struct errbuf *err);
void npy_close(struct npy *npy); /* takes NULL */
const struct npy_shape *npy_shape(const struct npy *npy);
const char *npy_dtype_name(enum npy_dtype dtype); /* "f4", … */
const void *npy_data(const struct npy *npy);      /* rows * row_elements elements, maybe unaligned */

/* out (rows, row_elements) = the rows from `first` on, each element rounded once. STATUS_RANGE for rows outside. */
int npy_read_f32(const struct npy *npy, int64_t first, int64_t rows, float *out);
int npy_read_f64(const struct npy *npy, int64_t first, int64_t rows, double *out);
/* Exact or STATUS_RANGE: also for a fraction, a NaN, or a number beyond int64. */
int npy_read_i64(const struct npy *npy, int64_t first, int64_t rows, int64_t *out);

#endif
