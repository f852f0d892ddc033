/* Own mode for tests: how a pair of engines gets there without the opening. */
#ifndef TEST_UDT_OWN_H
#define TEST_UDT_OWN_H

#include "test_udt_util.h"
#include "udt/conn.h"

/* Nothing sealed; control packets sealed; everything sealed. */
enum own_kind { OWN_PLAIN, OWN_CONTROL, OWN_SEALED };
/* One end of an open connection begins own mode; epoch_shift 0 = the default. */
void own_begin(udt_conn *c, int end, enum own_kind kind, int epoch_shift, udt_time now);
/* Both ends of a pair do. */
void own_pair(world *w, const pair *p, enum own_kind kind, int epoch_shift);

#endif
