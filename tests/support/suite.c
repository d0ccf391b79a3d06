/* SPDX-License-Identifier: Apache-2.0 */
/* Check's runner, for one suite at the end of main(). One thread; never returns to a test. */
#include "suite.h"

#include <stdlib.h>

int suite_run(Suite *suite) {
        SRunner *runner = srunner_create(suite);
        int n_failed;

        srunner_run_all(runner, CK_ENV);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
