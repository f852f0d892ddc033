/* Error list of the core: one X-macro gives enum, name and text.
 * Ranges: -1..-99 the caller's fault or state, -100..-199 the peer or the network,
 * -200..-299 the local disk, -300..-399 outcomes of GMP messages. */
#ifndef UDT_ERR_H
#define UDT_ERR_H

#define UDT_ERR_MAP(X)                                                            \
    X(INVAL, -1, "invalid argument")                                              \
    X(NOSOCK, -2, "no such socket, port or handle")                               \
    X(STATE, -3, "operation not possible in this state")                          \
    X(AGAIN, -4, "would block; wait for the next event")                          \
    X(TOOBIG, -5, "message or datagram too large")                                \
    X(NOMEM, -6, "out of memory")                                                 \
    X(LIMIT, -7, "limit reached")                                                 \
    X(CLOSED, -8, "closed by this side")                                          \
    X(FORKED, -9, "this context belongs to the parent of a forked process")       \
    X(INUSE, -10, "address or port already in use")                               \
    X(SYS, -11, "system call failed")                                             \
    X(NOKEY, -12, "no such key")                                                  \
    X(TIMEOUT, -100, "no answer in time")                                         \
    X(REJECTED, -101, "connection rejected by the peer")                          \
    X(BROKEN, -102, "connection broken: the peer fell silent")                    \
    X(PEERCLOSED, -103, "closed by the peer")                                     \
    X(PROTO, -104, "the peer broke the protocol")                                 \
    X(AUTH, -105, "authentication failed")                                        \
    X(DIGEST, -106, "digest mismatch: the data arrived damaged")                  \
    X(REMOTE, -107, "the peer reported an error")                                 \
    X(UNREACHABLE, -108, "peer unreachable")                                      \
    X(VANISHED, -109, "the peer fell silent; nothing is known to be missing")     \
    X(UNCONFIRMED, -110, "the peer fell silent with its last data unconfirmed")   \
    X(CUT, -111, "closed by the peer, which gave up some of what it had sent")    \
    X(DISKREAD, -200, "cannot read the file")                                     \
    X(DISKWRITE, -201, "cannot write the file")                                   \
    X(DISKFULL, -202, "no space left on the device")                              \
    X(DISKSYNC, -203, "cannot flush the file to disk")                            \
    X(SHORT, -204, "the file is shorter than promised")                           \
    X(REFUSED, -300, "refused by the peer")                                       \
    X(NOTSENT, -301, "not sent")                                                  \
    X(RESTARTED, -302, "the peer restarted; the message may have been delivered") \
    X(CANCELLED, -303, "cancelled")                                               \
    X(AUTHFAILED, -304, "the key died while the message was under way")

enum udt_err {
    UDT_OK = 0,
#define UDT_ERR_ENUM(name, value, text) UDT_E_##name = (value),
    UDT_ERR_MAP(UDT_ERR_ENUM)
#undef UDT_ERR_ENUM
};

/* Name ("UDT_E_AGAIN") and one-line text of a code; never NULL. */
const char *udt_err_name(int code);
const char *udt_err_text(int code);

#endif
