/* SPDX-License-Identifier: Apache-2.0 */
/* The machine's books. Any thread of any process; all changes under an flock on the state directory's file `books`, which
 * is held for microseconds and never while a call is made to wait. No descriptor stays open here. */
#include "books.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/cleanup.h"

#define MAGIC UINT64_C(0x6661b56375646121)
#define DIRTY 0xdb
#define LOOK_BYTES (INT64_C(64) << 20)

/* The content of `books`. Booked bytes may be those of pieces that nobody has any more: a look at all corrects that. */
struct ledger {
        struct {
                int64_t booked, seen; /* `seen`: what was booked at the last look */
        } devices[MACHINE_DEVICES];
};

struct books {
        int fd; /* locked */
        char pieces[PATH_MAX];
        struct ledger ledger;
};

static int make_directory(const char *path) {
        if (mkdir(path, 0777) == 0)
                return chmod(path, 0777) < 0 ? -errno : 0;
        return errno == EEXIST ? 0 : -errno;
}

static int open_shared(const char *path, int flags) {
        int fd = open(path, flags | O_CLOEXEC);
        if (fd >= 0 || errno != ENOENT)
                return fd < 0 ? -errno : fd;
        fd = open(path, flags | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd < 0)
                return errno == EEXIST ? open_shared(path, flags) : -errno;
        (void)fchmod(fd, 0666);
        return fd;
}

static int books_lock(struct books *ret) {
        const struct script *script = script_get();
        char path[PATH_MAX];
        int r = make_directory(script->state);

        if (r < 0)
                return r;
        snprintf(ret->pieces, sizeof(ret->pieces), "%.*s/memory", PATH_MAX - 64, script->state);
        r = make_directory(ret->pieces);
        if (r < 0)
                return r;
        snprintf(path, sizeof(path), "%.*s/books", PATH_MAX - 64, script->state);
        ret->fd = open_shared(path, O_RDWR);
        if (ret->fd < 0)
                return ret->fd;
        while (flock(ret->fd, LOCK_EX) < 0)
                if (errno != EINTR) {
                        r = -errno;
                        close(ret->fd);
                        return r;
                }
        memset(&ret->ledger, 0, sizeof(ret->ledger));
        if (pread(ret->fd, &ret->ledger, sizeof(ret->ledger), 0) < 0)
                fake_die("cannot read %s: %s", path, strerror(errno));
        return 0;
}

static void books_unlock(struct books *books) {
        if (pwrite(books->fd, &books->ledger, sizeof(books->ledger), 0) != (ssize_t)sizeof(books->ledger))
                fake_die("cannot write the books: %s", strerror(errno));
        close(books->fd);
}

int books_reach(void) {
        struct books books;
        int r = books_lock(&books);
        if (r < 0)
                return r;
        books_unlock(&books);
        return 0;
}

bool books_absent(int error) {
        return error == -ENOENT || error == -ENOTDIR || error == -EACCES || error == -EPERM || error == -EROFS;
}

static void piece_path(const struct books *books, const struct piece_name *name, char *ret, size_t n) {
        snprintf(ret, n, "%s/%d.%" PRId64 ".%016" PRIx64, books->pieces, name->device, name->size, name->id);
}

/* Unlinks a piece that nobody has. Whether somebody has it. */
static bool piece_settle(struct books *books, const struct piece_name *name) {
        char path[PATH_MAX + 64];

        piece_path(books, name, path, sizeof(path));
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
                return errno != ENOENT; /* out of descriptors: in doubt it lives */
        bool alive = flock(fd, LOCK_EX | LOCK_NB) < 0;
        if (!alive && unlink(path) == 0)
                books->ledger.devices[name->device].booked -= name->size;
        close(fd);
        return alive;
}

static bool parse_name(const char *text, struct piece_name *ret) {
        return sscanf(text, "%" SCNd32 ".%" SCNd64 ".%" SCNx64, &ret->device, &ret->size, &ret->id) == 3 && ret->device >= 0 &&
               ret->device < MACHINE_DEVICES;
}

/* Looks at every piece of a device, so that `booked` is true. */
static int look(struct books *books, int device) {
        DIR *directory = opendir(books->pieces);
        if (!directory)
                return -errno;
        int64_t alive = 0;
        for (struct dirent *entry; (entry = readdir(directory));) {
                struct piece_name name;
                if (parse_name(entry->d_name, &name) && name.device == device && piece_settle(books, &name))
                        alive += name.size;
        }
        closedir(directory);
        books->ledger.devices[device].booked = books->ledger.devices[device].seen = alive;
        return 0;
}

/* Books bytes, if the device has them. Looks when it seems not to, and when much was booked since the last time. */
static int book(struct books *books, int device, int64_t size) {
        const struct device_script *limits = &script_get()->devices[device];
        int64_t room = limits->total_bytes - limits->used_bytes;
        int64_t seen = books->ledger.devices[device].seen;
        int64_t *booked = &books->ledger.devices[device].booked;

        if (size > room - *booked || *booked - seen > (seen > LOOK_BYTES ? seen : LOOK_BYTES)) {
                int r = look(books, device);
                if (r < 0)
                        return r;
        }
        if (size > room - *booked)
                return -ENOMEM;
        *booked += size;
        return 0;
}

static int tag_map(int fd, int64_t size, struct tag **ret_tag) {
        void *at = mmap(NULL, TAG_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, size);
        if (at == MAP_FAILED)
                return -errno;
        (void)madvise(at, TAG_BYTES, MADV_DONTFORK);
        *ret_tag = at;
        return 0;
}

/* As if its last owner's bytes were still there. */
static int make_dirty(int fd, int64_t size) {
        void *at = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (at == MAP_FAILED)
                return -errno;
        memset(at, DIRTY, (size_t)size);
        munmap(at, (size_t)size);
        return 0;
}

static int piece_make(const struct books *books, const struct piece_name *name, enum piece kind, int *ret_fd, struct tag **ret_tag) {
        char path[PATH_MAX + 64];
        struct tag *tag = NULL;

        piece_path(books, name, path, sizeof(path));
        _cleanup_fd_ int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd < 0)
                return -errno;
        (void)fchmod(fd, 0666);
        int r = flock(fd, LOCK_SH) < 0 || ftruncate(fd, name->size + TAG_BYTES) < 0 ? -errno : 0;
        if (r == 0 && kind >= PIECE_VMM && !script_get()->devices[name->device].scrub)
                r = make_dirty(fd, name->size);
        if (r == 0)
                r = tag_map(fd, name->size, &tag);
        if (r < 0) {
                (void)unlink(path);
                return r;
        }
        tag->magic = MAGIC;
        tag->name = *name;
        tag->kind = kind;
        *ret_tag = tag;
        if (ret_fd)
                *ret_fd = take_fd(&fd);
        return 0;
}

int books_new(int device, enum piece kind, int64_t size, int *ret_fd, struct tag **ret_tag) {
        struct piece_name name = { .device = device, .size = size };
        struct books books;
        int r = getrandom(&name.id, sizeof(name.id), 0) == (ssize_t)sizeof(name.id) ? 0 : -EIO;

        if (r == 0)
                r = books_lock(&books);
        if (r < 0)
                return r;
        r = book(&books, device, size);
        if (r == 0) {
                r = piece_make(&books, &name, kind, ret_fd, ret_tag);
                if (r < 0)
                        books.ledger.devices[device].booked -= size;
        }
        books_unlock(&books);
        return r;
}

int books_open(const struct piece_name *name, int *ret_fd, struct tag **ret_tag) {
        char path[PATH_MAX + 64];
        struct books books;

        if (name->device < 0 || name->device >= MACHINE_DEVICES)
                return -EINVAL;
        int r = books_lock(&books);
        if (r < 0)
                return r;
        _cleanup_fd_ int fd = -1;
        if (piece_settle(&books, name)) {
                piece_path(&books, name, path, sizeof(path));
                fd = open(path, O_RDWR | O_CLOEXEC);
                r = fd < 0 || flock(fd, LOCK_SH) < 0 ? -errno : tag_map(fd, name->size, ret_tag);
        } else
                r = -ENOENT;
        books_unlock(&books);
        if (r == 0)
                *ret_fd = take_fd(&fd);
        return r;
}

int books_tag(int fd, struct tag **ret_tag) {
        struct stat status;
        struct tag tag;

        if (fstat(fd, &status) < 0 || !S_ISREG(status.st_mode) || status.st_size <= TAG_BYTES)
                return -EINVAL;
        if (pread(fd, &tag, sizeof(tag), status.st_size - TAG_BYTES) != (ssize_t)sizeof(tag) || tag.magic != MAGIC ||
            tag.name.size != status.st_size - TAG_BYTES)
                return -EINVAL;
        return tag_map(fd, tag.name.size, ret_tag);
}

void books_drop(struct tag *tag) {
        struct piece_name name = tag->name;
        struct books books;

        munmap(tag, TAG_BYTES);
        if (books_lock(&books) < 0)
                return; /* whoever looks next finds it */
        (void)piece_settle(&books, &name);
        books_unlock(&books);
}

bool books_alive(const struct piece_name *name) {
        struct books books;

        if (books_lock(&books) < 0)
                return false;
        bool alive = piece_settle(&books, name);
        books_unlock(&books);
        return alive;
}

int64_t books_free_bytes(int device) {
        const struct device_script *limits = &script_get()->devices[device];
        struct books books;
        int r = books_lock(&books);

        if (r < 0)
                return r;
        r = look(&books, device);
        int64_t free_bytes = limits->total_bytes - limits->used_bytes - books.ledger.devices[device].booked;
        books_unlock(&books);
        return r < 0 ? r : free_bytes > 0 ? free_bytes : 0;
}

int books_open_log(const struct script *script) {
        char path[PATH_MAX];
        int r = make_directory(script->state);

        if (r < 0)
                return r;
        snprintf(path, sizeof(path), "%.*s/calls", PATH_MAX - 64, script->state);
        return open_shared(path, O_WRONLY | O_APPEND);
}
