#include "ends.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/ethtool.h>
#include <linux/if_tun.h>
#include <linux/nsfs.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { DEVICE_QUEUE = 20000 };

#ifndef TUN_F_USO4 /* headers older than Linux 6.2 */
#define TUN_F_USO4 0x20
#define TUN_F_USO6 0x40
#endif

struct in6_ifreq {
    struct in6_addr addr;
    uint32_t prefix;
    int index;
};

void wan_die(const char *what)
{
    fprintf(stderr, "wan: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) < 0)
        wan_die(path);
    close(fd);
}

/* Who is not root becomes it in a user namespace, and with that owner of the network namespaces. */
static void become_root(void)
{
    char map[64], groups[64];
    if (geteuid() == 0)
        return;
    snprintf(map, sizeof map, "0 %u 1", (unsigned)geteuid());
    snprintf(groups, sizeof groups, "0 %u 1", (unsigned)getegid());
    if (unshare(CLONE_NEWUSER) < 0)
        wan_die("a user namespace (or be root)");
    write_file("/proc/self/setgroups", "deny");
    write_file("/proc/self/uid_map", map);
    write_file("/proc/self/gid_map", groups);
}

static int new_namespace(int *home)
{
    become_root();
    *home = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    if (*home < 0 || unshare(CLONE_NEWNET) < 0)
        wan_die("a network namespace");
    return open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
}

/* setns() back fails for who left its user namespace; staying is no harm then. */
static void go_home(int home)
{
    if (setns(home, CLONE_NEWNET) < 0 && errno != EPERM)
        wan_die("setns");
    close(home);
}

static void sysctl_set(const char *name, const char *value)
{
    char path[128];
    snprintf(path, sizeof path, "/proc/sys/net/%s", name);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return; /* a kernel without it */
    if (fd < 0 || write(fd, value, strlen(value)) < 0)
        wan_die(path);
    close(fd);
}

/* TCP may fill the path: auto-tuning up to window_bytes, nothing remembered between runs. */
static void tune(int64_t window_bytes)
{
    char text[96];
    snprintf(text, sizeof text, "4096 131072 %lld", (long long)window_bytes);
    sysctl_set("ipv4/tcp_rmem", text);
    snprintf(text, sizeof text, "4096 65536 %lld", (long long)window_bytes);
    sysctl_set("ipv4/tcp_wmem", text);
    sysctl_set("ipv4/tcp_no_metrics_save", "1");
    sysctl_set("ipv6/conf/default/accept_dad", "0");
    sysctl_set("ipv6/conf/default/router_solicitations", "0");
    sysctl_set("ipv6/conf/default/addr_gen_mode", "1");
}

static void ask(int fd, unsigned long request, void *arg, const char *what)
{
    if (ioctl(fd, request, arg) < 0)
        wan_die(what);
}

static void up(int s, const char *device)
{
    struct ifreq r = {0};
    snprintf(r.ifr_name, sizeof r.ifr_name, "%s", device);
    ask(s, SIOCGIFFLAGS, &r, "SIOCGIFFLAGS");
    r.ifr_flags = (short)(r.ifr_flags | IFF_UP | IFF_RUNNING);
    ask(s, SIOCSIFFLAGS, &r, "SIOCSIFFLAGS");
}

static struct ifreq named(void)
{
    struct ifreq r = {0};
    snprintf(r.ifr_name, sizeof r.ifr_name, "%s", WAN_DEVICE);
    return r;
}

static void address4(int s, const char *text)
{
    struct sockaddr_in in = {.sin_family = AF_INET};
    struct ifreq r = named();
    inet_pton(AF_INET, text, &in.sin_addr);
    memcpy(&r.ifr_addr, &in, sizeof in);
    ask(s, SIOCSIFADDR, &r, "SIOCSIFADDR");
    inet_pton(AF_INET, "255.255.255.0", &in.sin_addr);
    memcpy(&r.ifr_netmask, &in, sizeof in);
    ask(s, SIOCSIFNETMASK, &r, "SIOCSIFNETMASK");
}

static void address6(const char *text)
{
    struct in6_ifreq r = {.prefix = 64};
    int s = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (s < 0)
        return; /* no IPv6 here */
    r.index = (int)if_nametoindex(WAN_DEVICE);
    inet_pton(AF_INET6, text, &r.addr);
    ask(s, SIOCSIFADDR, &r, "SIOCSIFADDR for IPv6");
    close(s);
}

/* Pieces and open checksums as far as the kernel has them (USO since 6.2), or single finished
 * frames. */
static wan_offload offer_offload(int tun, bool wanted)
{
    static const unsigned tso = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN,
                          uso = TUN_F_USO4 | TUN_F_USO6;
    if (wanted && ioctl(tun, TUNSETOFFLOAD, (unsigned long)(tso | uso)) == 0)
        return WAN_OFFLOAD_ALL;
    if (wanted && ioctl(tun, TUNSETOFFLOAD, (unsigned long)tso) == 0)
        return WAN_OFFLOAD_TCP;
    ask(tun, TUNSETOFFLOAD, NULL, "TUNSETOFFLOAD");
    return WAN_OFFLOAD_NONE;
}

void wan_end_make(wan_end *e, int which, size_t mtu, bool offload, int64_t window_bytes)
{
    int home;
    e->ns = new_namespace(&home);
    tune(window_bytes);
    e->tun = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (e->ns < 0 || e->tun < 0)
        wan_die("/dev/net/tun");
    struct ifreq r = named();
    r.ifr_flags = (short)(IFF_TUN | IFF_NO_PI | (offload ? IFF_VNET_HDR : 0));
    ask(e->tun, TUNSETIFF, &r, "TUNSETIFF");
    e->joined = offload;
    e->offload = offer_offload(e->tun, offload);
    int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (s < 0)
        wan_die("socket");
    up(s, "lo");
    r = named();
    r.ifr_mtu = (int)mtu;
    ask(s, SIOCSIFMTU, &r, "SIOCSIFMTU");
    r = named();
    r.ifr_qlen = DEVICE_QUEUE;
    if (ioctl(s, SIOCSIFTXQLEN, &r) < 0 && errno != EPERM) /* root only; else 500 frames */
        wan_die("SIOCSIFTXQLEN");
    snprintf(e->addr4, sizeof e->addr4, "10.77.0.%d", which + 1);
    snprintf(e->addr6, sizeof e->addr6, "fd77::%d", which + 1);
    address4(s, e->addr4);
    up(s, WAN_DEVICE);
    address6(e->addr6);
    close(s);
    go_home(home);
}

static void offload_off(int s, const char *device, bool checksums)
{
    static const uint32_t what[] = {ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_SGRO, ETHTOOL_STXCSUM,
                                    ETHTOOL_SRXCSUM};
    for (size_t i = 0; i < (checksums ? 5 : 3); i++) {
        struct ethtool_value v = {.cmd = what[i], .data = 0};
        struct ifreq r = {.ifr_data = (void *)&v};
        snprintf(r.ifr_name, sizeof r.ifr_name, "%s", device);
        ask(s, SIOCETHTOOL, &r, "SIOCETHTOOL");
    }
}

void wan_device_single(const char *device)
{
    int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (s < 0)
        wan_die("socket");
    offload_off(s, device, true);
    close(s);
}

void wan_local_make(wan_end *e, size_t mtu, bool offload, int64_t window_bytes)
{
    int home;
    e->ns = new_namespace(&home);
    e->tun = -1;
    tune(window_bytes);
    int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (e->ns < 0 || s < 0)
        wan_die("socket");
    struct ifreq r = {.ifr_mtu = (int)mtu};
    snprintf(r.ifr_name, sizeof r.ifr_name, "lo");
    ask(s, SIOCSIFMTU, &r, "SIOCSIFMTU");
    if (!offload)
        offload_off(s, "lo", false);
    up(s, "lo");
    close(s);
    snprintf(e->addr4, sizeof e->addr4, "127.0.0.1");
    snprintf(e->addr6, sizeof e->addr6, "::1");
    go_home(home);
}

int64_t wan_end_overruns(const wan_end *e)
{
    char line[512];
    long long drop = 0;
    int home = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    if (home < 0 || setns(e->ns, CLONE_NEWNET) < 0)
        return -1;
    FILE *f = fopen("/proc/thread-self/net/dev", "re");
    while (f && fgets(line, sizeof line, f)) {
        char *at = strstr(line, WAN_DEVICE ":");
        if (at)
            sscanf(at + sizeof WAN_DEVICE, "%*d %*d %*d %*d %*d %*d %*d %*d %*d %*d %*d %lld",
                   &drop);
    }
    if (f)
        fclose(f);
    go_home(home);
    return drop;
}

void wan_enter(const char *path, char **argv)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    int user = fd < 0 || geteuid() == 0 ? -1 : ioctl(fd, NS_GET_USERNS);
    if (user >= 0 && setns(user, CLONE_NEWUSER) < 0)
        wan_die("the user namespace");
    if (fd < 0 || setns(fd, CLONE_NEWNET) < 0)
        wan_die(path);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execvp(argv[0], argv);
    wan_die(argv[0]);
}
