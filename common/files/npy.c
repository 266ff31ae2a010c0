#include "files/npy.h"

#include "base/errbuf.h"
#include "base/status.h"
#include "files/file_map.h"
#include "files/npy_header.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "elements are read in place");

enum { NPY_HEADER_BYTES_MAX = 1 << 16 };

/* Three loops a type, from unaligned elements. A C cast rounds once; to int64 it must be exact. */
#define NPY_FLOATS(type, name)                                                                                     \
    static void npy_##name##_f32(const char *in, int64_t count, float *out)                                        \
    {                                                                                                              \
        for (int64_t i = 0; i < count; i++) {                                                                      \
            type value;                                                                                            \
            memcpy(&value, in + i * (int64_t)sizeof value, sizeof value);                                          \
            out[i] = (float)value;                                                                                 \
        }                                                                                                          \
    }                                                                                                              \
    static void npy_##name##_f64(const char *in, int64_t count, double *out)                                       \
    {                                                                                                              \
        for (int64_t i = 0; i < count; i++) {                                                                      \
            type value;                                                                                            \
            memcpy(&value, in + i * (int64_t)sizeof value, sizeof value);                                          \
            out[i] = (double)value;                                                                                \
        }                                                                                                          \
    }
#define NPY_INTEGERS(type, name, fits)                                                                             \
    static int npy_##name##_i64(const char *in, int64_t count, int64_t *out)                                       \
    {                                                                                                              \
        for (int64_t i = 0; i < count; i++) {                                                                      \
            type value;                                                                                            \
            memcpy(&value, in + i * (int64_t)sizeof value, sizeof value);                                          \
            if (!(fits))                                                                                           \
                return STATUS_RANGE;                                                                               \
            out[i] = (int64_t)value;                                                                               \
        }                                                                                                          \
        return STATUS_OK;                                                                                          \
    }
/* The casts are reached only inside of int64's range; a NaN fails the first comparison. */
#define NPY_IS_WHOLE(value) ((value) >= -0x1p63 && (value) < 0x1p63 && (double)(int64_t)(value) == (double)(value))

NPY_FLOATS(float, f4)
NPY_FLOATS(double, f8)
NPY_FLOATS(int8_t, i1)
NPY_FLOATS(int16_t, i2)
NPY_FLOATS(int32_t, i4)
NPY_FLOATS(int64_t, i8)
NPY_FLOATS(uint8_t, u1)
NPY_FLOATS(uint16_t, u2)
NPY_FLOATS(uint32_t, u4)
NPY_FLOATS(uint64_t, u8)
NPY_INTEGERS(float, f4, NPY_IS_WHOLE(value))
NPY_INTEGERS(double, f8, NPY_IS_WHOLE(value))
NPY_INTEGERS(int8_t, i1, 1)
NPY_INTEGERS(int16_t, i2, 1)
NPY_INTEGERS(int32_t, i4, 1)
NPY_INTEGERS(int64_t, i8, 1)
NPY_INTEGERS(uint8_t, u1, 1)
NPY_INTEGERS(uint16_t, u2, 1)
NPY_INTEGERS(uint32_t, u4, 1)
NPY_INTEGERS(uint64_t, u8, value <= INT64_MAX)

struct npy_type {
    const char *name;
    size_t bytes;
    void (*to_f32)(const char *in, int64_t count, float *out);
    void (*to_f64)(const char *in, int64_t count, double *out);
    int (*to_i64)(const char *in, int64_t count, int64_t *out);
};
static const struct npy_type npy_types[NPY_DTYPES] = {
    [NPY_F4] = {"f4", 4, npy_f4_f32, npy_f4_f64, npy_f4_i64},
    [NPY_F8] = {"f8", 8, npy_f8_f32, npy_f8_f64, npy_f8_i64},
    [NPY_I1] = {"i1", 1, npy_i1_f32, npy_i1_f64, npy_i1_i64},
    [NPY_I2] = {"i2", 2, npy_i2_f32, npy_i2_f64, npy_i2_i64},
    [NPY_I4] = {"i4", 4, npy_i4_f32, npy_i4_f64, npy_i4_i64},
    [NPY_I8] = {"i8", 8, npy_i8_f32, npy_i8_f64, npy_i8_i64},
    [NPY_U1] = {"u1", 1, npy_u1_f32, npy_u1_f64, npy_u1_i64},
    [NPY_U2] = {"u2", 2, npy_u2_f32, npy_u2_f64, npy_u2_i64},
    [NPY_U4] = {"u4", 4, npy_u4_f32, npy_u4_f64, npy_u4_i64},
    [NPY_U8] = {"u8", 8, npy_u8_f32, npy_u8_f64, npy_u8_i64},
};

struct npy {
    struct file_map map; /* empty after npy_parse */
    struct npy_shape shape;
    const char *data;
};

const char *npy_dtype_name(enum npy_dtype dtype)
{
    return npy_types[dtype].name;
}

static int npy_set_dtype(struct npy *npy, const char *descr, struct errbuf *err)
{
    if (descr[0] == '>')
        return errbuf_set(err, STATUS_FORMAT, "big-endian data (%s) are not supported", descr);
    if (descr[0] == '<' || descr[0] == '|') {
        for (int type = 0; type < NPY_DTYPES; type++) {
            /* Only a single byte has no order. */
            if (strcmp(descr + 1, npy_types[type].name) == 0 && (descr[0] == '<' || npy_types[type].bytes == 1)) {
                npy->shape.dtype = (enum npy_dtype)type;
                return STATUS_OK;
            }
        }
    }
    return errbuf_set(err, STATUS_FORMAT, "type %s is not supported (f4 f8 i1 i2 i4 i8 u1 u2 u4 u8 are)", descr);
}

static int npy_set_shape(struct npy *npy, const struct npy_header *header, size_t data_bytes, struct errbuf *err)
{
    struct npy_shape *shape = &npy->shape;
    int64_t count = 1, wanted, size = (int64_t)npy_types[shape->dtype].bytes;
    int overflow = 0;
    shape->dims = header->dims;
    shape->rows = header->dims ? header->shape[0] : 1;
    shape->row_elements = 1;
    for (int d = 0; d < header->dims; d++) {
        shape->shape[d] = header->shape[d];
        overflow |= __builtin_mul_overflow(count, header->shape[d], &count);
        if (d > 0)
            overflow |= __builtin_mul_overflow(shape->row_elements, header->shape[d], &shape->row_elements);
    }
    if (overflow || __builtin_mul_overflow(count, size, &wanted))
        return errbuf_set(err, STATUS_FORMAT, "its shape has too many elements");
    if ((uint64_t)wanted != data_bytes)
        return errbuf_set(err, STATUS_FORMAT,
                          "its shape has %" PRId64 " elements of %" PRId64
                          " bytes, the file holds %zu bytes of data",
                          count, size, data_bytes);
    return STATUS_OK;
}

/* Where the header's text begins and how long it is. */
static int npy_find_header(const unsigned char *bytes, size_t count, size_t *begin, size_t *length,
                           struct errbuf *err)
{
    if (count < 10 || memcmp(bytes, "\x93NUMPY", 6) != 0)
        return errbuf_set(err, STATUS_FORMAT, "not a .npy file");
    if ((bytes[6] != 1 && bytes[6] != 2) || bytes[7] != 0)
        return errbuf_set(err, STATUS_FORMAT, "version %d.%d is not supported (1.0 and 2.0 are)", bytes[6],
                          bytes[7]);
    *begin = bytes[6] == 1 ? 10 : 12;
    if (count < *begin)
        return errbuf_set(err, STATUS_FORMAT, "cut inside of its header");
    *length = bytes[8] | (size_t)bytes[9] << 8;
    if (bytes[6] == 2)
        *length |= (size_t)bytes[10] << 16 | (size_t)bytes[11] << 24;
    if (*length > count - *begin)
        return errbuf_set(err, STATUS_FORMAT, "a header of %zu bytes does not fit into a file of %zu", *length,
                          count);
    if (*length > NPY_HEADER_BYTES_MAX)
        return errbuf_set(err, STATUS_FORMAT, "a header of %zu bytes, at most %d are allowed", *length,
                          NPY_HEADER_BYTES_MAX);
    return STATUS_OK;
}

static int npy_fill(struct npy *npy, const unsigned char *bytes, size_t count, struct errbuf *err)
{
    size_t begin = 0, length = 0;
    struct npy_header header;
    int status = npy_find_header(bytes, count, &begin, &length, err);
    if (!status)
        status = npy_header_parse((const char *)bytes + begin, length, &header, err);
    if (!status)
        status = npy_set_dtype(npy, header.descr, err);
    if (!status && header.fortran_order)
        status = errbuf_set(err, STATUS_FORMAT, "Fortran order is not supported; save numpy.ascontiguousarray(x)");
    if (!status)
        status = npy_set_shape(npy, &header, count - begin - length, err);
    if (!status)
        npy->data = (const char *)bytes + begin + length;
    return status;
}

int npy_parse(struct npy **out, const void *bytes, size_t count, struct errbuf *err)
{
    *out = NULL;
    struct npy *npy = calloc(1, sizeof *npy);
    if (!npy)
        return errbuf_set(err, STATUS_NOMEM, "npy: out of memory");
    int status = npy_fill(npy, bytes, count, err);
    if (status) {
        free(npy);
        return errbuf_prefix(err, status, "npy");
    }
    *out = npy;
    return STATUS_OK;
}

int npy_open(struct npy **out, const char *path, struct errbuf *err)
{
    struct file_map map;
    *out = NULL;
    int status = file_map_open(&map, path, err);
    if (status)
        return errbuf_prefix(err, status, "npy");
    status = npy_parse(out, map.data, map.bytes, err);
    if (status) {
        file_map_close(&map);
        return errbuf_prefix(err, status, "%s", path);
    }
    (*out)->map = map;
    return STATUS_OK;
}

void npy_close(struct npy *npy)
{
    if (!npy)
        return;
    file_map_close(&npy->map);
    free(npy);
}

const struct npy_shape *npy_shape(const struct npy *npy)
{
    return &npy->shape;
}

const void *npy_data(const struct npy *npy)
{
    return npy->data;
}

/* NULL when the rows do not all exist. The products cannot overflow: the whole array lies in memory. */
static const char *npy_rows(const struct npy *npy, int64_t first, int64_t rows, int64_t *count)
{
    const struct npy_shape *shape = &npy->shape;
    if (first < 0 || rows < 0 || first > shape->rows || rows > shape->rows - first)
        return NULL;
    *count = rows * shape->row_elements;
    return npy->data + first * shape->row_elements * (int64_t)npy_types[shape->dtype].bytes;
}

int npy_read_f32(const struct npy *npy, int64_t first, int64_t rows, float *out)
{
    int64_t count;
    const char *in = npy_rows(npy, first, rows, &count);
    if (!in)
        return STATUS_RANGE;
    npy_types[npy->shape.dtype].to_f32(in, count, out);
    return STATUS_OK;
}

int npy_read_f64(const struct npy *npy, int64_t first, int64_t rows, double *out)
{
    int64_t count;
    const char *in = npy_rows(npy, first, rows, &count);
    if (!in)
        return STATUS_RANGE;
    npy_types[npy->shape.dtype].to_f64(in, count, out);
    return STATUS_OK;
}

int npy_read_i64(const struct npy *npy, int64_t first, int64_t rows, int64_t *out)
{
    int64_t count;
    const char *in = npy_rows(npy, first, rows, &count);
    if (!in)
        return STATUS_RANGE;
    return npy_types[npy->shape.dtype].to_i64(in, count, out);
}
