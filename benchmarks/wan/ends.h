/* The two ends of an emulated link: network namespaces without a name, so that nothing is left
 * whatever ends this process and those inside, each with one TUN device. */
#ifndef WAN_ENDS_H
#define WAN_ENDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WAN_DEVICE "wan0"

typedef enum wan_offload { WAN_OFFLOAD_NONE, WAN_OFFLOAD_TCP, WAN_OFFLOAD_ALL } wan_offload;

typedef struct wan_end {
    int ns, tun;         /* descriptors */
    bool joined;         /* before each packet of tun stands a struct virtio_net_hdr */
    wan_offload offload; /* what may come and go in pieces */
    char addr4[24], addr6[40];
} wan_end;

/* Makes end number `which` (0 or 1); afterwards the process is where it was. `offload`: its stack
 * may leave segmentation and checksums to us, as to a network card. Exits on failure. */
void wan_end_make(wan_end *e, int which, size_t mtu, bool offload, int64_t window_bytes);
/* A namespace with nothing but a loopback device; `offload` false: every packet of at most `mtu`
 * bytes goes through the stack alone (no TSO, GSO, GRO). */
void wan_local_make(wan_end *e, size_t mtu, bool offload, int64_t window_bytes);
/* Frames and checksums of a device as they are on a wire: no offload of any kind. */
void wan_device_single(const char *device);
/* Frames the device dropped because nobody read them. */
int64_t wan_end_overruns(const wan_end *e);
/* Runs argv in the namespace that `path` names; dies with its parent. Does not return. */
_Noreturn void wan_enter(const char *path, char **argv);
_Noreturn void wan_die(const char *what);

#endif
