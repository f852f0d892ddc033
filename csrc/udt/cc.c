#include "udt/cc.h"

#include <string.h>

const udt_cc_ops *const udt_cc_all[] = {&udt_cc_udt, &udt_cc_bbr_ops, &udt_cc_cubic_ops,
                                        &udt_cc_fixed_ops, NULL};

const udt_cc_ops *udt_cc_find(const char *name, bool plain)
{
    if (!name)
        return plain ? &udt_cc_udt : &udt_cc_bbr_ops;
    for (int i = 0; udt_cc_all[i]; i++)
        if (strcmp(udt_cc_all[i]->name, name) == 0)
            return udt_cc_all[i];
    return NULL;
}
