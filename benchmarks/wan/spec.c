/* The text of a link. */
#include "link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct unit {
    const char *name;
    double factor;
};

static const struct unit times[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {NULL, 0}};
static const struct unit rates[] = {{"k", 1e3}, {"m", 1e6}, {"g", 1e9}, {"", 1}, {NULL, 0}};
static const struct unit sizes[] = {{"kb", 1e3}, {"mb", 1e6}, {"b", 1}, {NULL, 0}};
static const struct unit shares[] = {{"%", 0.01}, {"", 1}, {NULL, 0}};

/* A number with a unit; *end behind it (at ':' or the end of the text). */
static bool number(const char *s, const struct unit *units, double *out, const char **end)
{
    char *at;
    double v = strtod(s, &at);
    size_t n = strcspn(at, ":");
    if (at == s || !(v >= 0) || v > 1e15)
        return false;
    for (; units->name; units++)
        if (strlen(units->name) == n && strncasecmp(at, units->name, n) == 0) {
            *out = v * units->factor;
            *end = at + n;
            return true;
        }
    return false;
}

static bool whole_number(const char *s, const struct unit *units, double *out)
{
    const char *end;
    return number(s, units, out, &end) && *end == 0;
}

static bool share(const char *s, double *out)
{
    return whole_number(s, shares, out) && *out <= 1;
}

static bool duration(const char *s, int64_t *out, double half)
{
    double v;
    if (!whole_number(s, times, &v) || v > 60e9)
        return false;
    *out = (int64_t)(v * half);
    return true;
}

/* shares separated by ':' */
static int share_list(const char *s, double *out, int max)
{
    int n = 0;
    for (; n < max; s++) {
        if (!number(s, shares, &out[n], &s) || out[n] > 1)
            return -1;
        n++;
        if (*s == 0)
            return n;
    }
    return -1;
}

/* p:r[:loss in bad[:loss in good]] */
static bool gilbert(wan_spec *s, const char *v)
{
    double q[4] = {0, 0, 1, 0};
    int n = share_list(v, q, 4);
    if (n < 2 || q[1] <= 0)
        return false;
    s->ge_p = q[0];
    s->ge_r = q[1];
    s->ge_bad = q[2];
    s->ge_good = q[3];
    return true;
}

/* burst=MEAN LOSS:MEAN LENGTH OF A BURST in frames */
static bool burst(wan_spec *s, const char *v)
{
    double mean;
    char *end;
    if (!number(v, shares, &mean, &v) || *v != ':' || mean >= 1)
        return false;
    double frames = strtod(v + 1, &end);
    if (*end || !(frames >= 1))
        return false;
    s->ge_r = 1 / frames;
    s->ge_p = mean / (1 - mean) * s->ge_r;
    s->ge_bad = 1;
    s->ge_good = 0;
    return s->ge_p <= 1;
}

static bool reorder(wan_spec *s, const char *v)
{
    const char *end;
    s->reorder_ns = 1000000;
    return number(v, shares, &s->reorder, &end) && s->reorder <= 1 &&
           (*end == 0 || duration(end + 1, &s->reorder_ns, 1));
}

static bool queue(wan_spec *s, const char *v)
{
    static const struct unit frames[] = {{"f", 1}, {NULL, 0}}, bdp[] = {{"bdp", 1}, {NULL, 0}};
    double x;
    s->queue_bytes = s->queue_frames = 0;
    s->queue_bdp = 0;
    if (whole_number(v, frames, &x) && x >= 1)
        s->queue_frames = (int64_t)x;
    else if (whole_number(v, bdp, &x) && x > 0)
        s->queue_bdp = x;
    else if (whole_number(v, sizes, &x) && x >= 1600)
        s->queue_bytes = (int64_t)x;
    else
        return false;
    return true;
}

static bool rate(wan_spec *s, const char *v)
{
    double x;
    if (!whole_number(v, rates, &x) || (x > 0 && x < 1e3))
        return false;
    s->rate_bps = (int64_t)x;
    return true;
}

static bool order(wan_spec *s, const char *v)
{
    s->in_order = strcmp(v, "keep") == 0;
    return s->in_order || strcmp(v, "free") == 0;
}

static bool set(wan_spec *s, const char *key, const char *v)
{
    if (strcmp(key, "rate") == 0)
        return rate(s, v);
    if (strcmp(key, "delay") == 0)
        return duration(v, &s->delay_ns, 1);
    if (strcmp(key, "rtt") == 0)
        return duration(v, &s->delay_ns, 0.5);
    if (strcmp(key, "jitter") == 0)
        return duration(v, &s->jitter_ns, 1);
    if (strcmp(key, "order") == 0)
        return order(s, v);
    if (strcmp(key, "loss") == 0)
        return share(v, &s->loss);
    if (strcmp(key, "ge") == 0)
        return gilbert(s, v);
    if (strcmp(key, "burst") == 0)
        return burst(s, v);
    if (strcmp(key, "reorder") == 0)
        return reorder(s, v);
    if (strcmp(key, "dup") == 0)
        return share(v, &s->dup);
    if (strcmp(key, "corrupt") == 0)
        return share(v, &s->corrupt);
    return strcmp(key, "queue") == 0 && queue(s, v);
}

bool wan_spec_parse(wan_spec *spec, const char *text, char *err, size_t cap)
{
    char copy[512], *save = NULL;
    if (strlen(text) >= sizeof copy) {
        snprintf(err, cap, "the link's text is too long");
        return false;
    }
    strcpy(copy, text);
    for (char *part = strtok_r(copy, ",", &save); part; part = strtok_r(NULL, ",", &save)) {
        char shown[64];
        snprintf(shown, sizeof shown, "%s", part);
        char *v = strchr(part, '=');
        if (v)
            *v++ = 0;
        if (!v || !set(spec, part, v)) {
            snprintf(err, cap, "not a property of a link: %s", shown);
            return false;
        }
    }
    return true;
}

bool wan_flow_parse(wan_spec *spec, const char *text, char *err, size_t cap)
{
    unsigned port = 0;
    int used = 0;
    wan_flow *f = &spec->flow[spec->flows];
    const char *rest = text;
    if (sscanf(text, "port=%u,%n", &port, &used) == 1 && used)
        rest = text + used;
    bool ok = spec->flows < WAN_MAX_FLOWS && port > 0 && port < 65536 &&
              ((strncmp(rest, "rtt=", 4) == 0 && duration(rest + 4, &f->delay_ns, 0.5)) ||
               (strncmp(rest, "delay=", 6) == 0 && duration(rest + 6, &f->delay_ns, 1)));
    if (!ok) {
        snprintf(err, cap, "not a flow (port=N,rtt=TIME; at most %d): %s", WAN_MAX_FLOWS, text);
        return false;
    }
    f->port = (uint16_t)port;
    spec->flows++;
    return true;
}

void wan_spec_finish(wan_spec *spec, int64_t back_ns)
{
    if (spec->rate_bps == 0 || spec->queue_bytes || spec->queue_frames)
        return;
    if (spec->queue_bdp <= 0)
        spec->queue_bdp = 1;
    double bytes = (double)spec->rate_bps / 8e9 * (double)(spec->delay_ns + back_ns);
    spec->queue_bytes = (int64_t)(bytes * spec->queue_bdp);
    if (spec->queue_bytes < 32 * 1538) /* a queue for a burst, however short the way */
        spec->queue_bytes = 32 * 1538;
}
