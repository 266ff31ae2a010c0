/* The real files of cases.md, read by a reader of the tests' own, so that the oracles do not rest on the loaders.
 * A file that is not installed fails the test and names the Debian package. */
#ifndef SHOAL_TESTS_CASE_DATA_H
#define SHOAL_TESTS_CASE_DATA_H

#include "tests/lib/reference.h"

void case_data_fashion(struct reference_data *data, int test_part); /* pixels / 255 */
void case_data_heart_scale(struct reference_data *data);            /* 270 x 13; -1 is class 0 */
void case_data_iris(struct reference_data *data);
void case_data_digits(struct reference_data *data);        /* values / 16 */
void case_data_breast_cancer(struct reference_data *data); /* columns to mean 0, population sd 1 */
void case_data_free(struct reference_data *data);

#endif
