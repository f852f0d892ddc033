/* Preloaded below a running program: writes down, in one order over all threads and processes, what
 * is done to files under one directory, what is synced, and which answers with status 2xx leave for
 * clients.
 *
 *   RECORD_ROOT   the directory, as realpath(3) gives it
 *   RECORD_LOG    a file that is there already; records are appended
 *   RECORD_ASIDE  a directory of the same file system: each file that is made gets a second name
 * here, its inode number, so that no number is used twice while the recording lasts (directories
 * that are removed are kept open instead, so record not more than some hundreds of those)
 *
 * The first eight bytes of the log are a counter shared by all. Each call takes a number before it
 * begins and one after it has returned: what ended before another began came before it, the rest
 * was at the same time. An answer is recorded before it is sent. A call that changes files in a way
 * that is not understood here is recorded as such, so that no reader takes the recording for
 * complete.
 *
 * Layout of a record: struct record, then name, name2, data. Read by tests/recording.py.
 */

#ifndef SHIM_RECORDER_H
#define SHIM_RECORDER_H

#include <fcntl.h>
#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))
#define HEAD_BYTES 1024 /* of an answer that are kept */

enum kind {
    CREATE = 1,
    MKDIR,
    WRITE,
    TRUNCATE,
    SET_XATTR,
    REMOVE_XATTR,
    TIMES,
    RENAME,
    LINK,
    UNLINK,
    RMDIR,
    FSYNC,
    FDATASYNC,
    SYNC_ALL,
    ANSWER,
    STRANGE,
};

struct record {
    uint32_t length; /* of all of it */
    uint32_t kind;
    uint64_t begin, end;
    uint64_t inode;      /* of the file or directory that is changed, made, named or synced */
    uint64_t directory;  /* that holds `name` */
    uint64_t directory2; /* that holds `name2` */
    int64_t offset;      /* of a write; size of a truncation; mtime in ns */
    uint32_t pid, name_length, name2_length, data_length;
};

/* The directory of a path and the last name of it. */
struct place {
    int inside;
    uint64_t directory;
    char name[NAME_MAX + 1];
};

extern int recorder_aside;

/* The next number; 0 when nothing is recorded. */
uint64_t tick(void);
/* Write a record; all but answers end now. */
void put(struct record *r, const char *name, const char *name2, const void *data, size_t size);
/* The descriptor moved out of the way of programs that close all of theirs; -1 stays. */
int high(int fd);
/* Whether an open descriptor is under the root; its inode. */
int inside(int fd, uint64_t *inode);
/* `place->inside` is 0 where nothing is recorded. */
void locate(int at, const char *path, struct place *place);
/* 0 for nothing. */
uint64_t inode_at(int at, const char *path);
/* Record that something was done which cannot be followed. */
void strange(const char *what, uint64_t inode);

#endif
