/* Conventions of the room `tensor`, and all of its headers at once.
 *
 * All matrices are row-major float32 with the leading dimension equal to the row length unless an argument
 * says otherwise. Pointers may have any alignment of 4 bytes. Every kernel gives the same bits at any offset,
 * for any number of pool threads and with any instruction set (paths are chosen at run time; no FMA outside
 * gemm; sums run in 16 fixed lanes, lane i taking elements i, i+16, …, lanes then added 0..15 in order). Only a
 * NaN's sign and payload are left open.
 * Kernels never allocate. Each has a slow twin in naive.h. Any thread may call any of them; outputs are the
 * caller's and must not be shared by two calls at once. A count or dimension of 0 is allowed everywhere. */
#ifndef SHOAL_TENSOR_TENSOR_H
#define SHOAL_TENSOR_TENSOR_H

#include "tensor/elementwise.h"
#include "tensor/gemm.h"
#include "tensor/loss.h"
#include "tensor/norm.h"
#include "tensor/reduce.h"

#endif
