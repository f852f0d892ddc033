#include "udt_err.h"

const char *udt_err_name(int code)
{
    switch (code) {
    case UDT_OK:
        return "UDT_OK";
#define UDT_ERR_NAME(name, value, text) \
    case value:                         \
        return "UDT_E_" #name;
        UDT_ERR_MAP(UDT_ERR_NAME)
#undef UDT_ERR_NAME
    default:
        return "UDT_E_UNKNOWN";
    }
}

const char *udt_err_text(int code)
{
    switch (code) {
    case UDT_OK:
        return "success";
#define UDT_ERR_TEXT(name, value, text) \
    case value:                         \
        return text;
        UDT_ERR_MAP(UDT_ERR_TEXT)
#undef UDT_ERR_TEXT
    default:
        return "unknown error";
    }
}
