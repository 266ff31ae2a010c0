/* The option reference, from the option table. Pure; any thread. Texts are owned by the caller, NULL when out of
 * memory. */
#ifndef SHOAL_CONFIG_REFERENCE_H
#define SHOAL_CONFIG_REFERENCE_H

char *reference_markdown(void); /* one table a section, for README.md */
char *reference_man_page(void); /* shoal-job(5) */
char *reference_help(void);     /* one line an option, for `shoal help job` and --help */

#endif
