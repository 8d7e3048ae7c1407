/* Answers for /dev/kfd and the render nodes of a simulated host, like an idle driver: requests succeed, a device's
 * memory is the processor's, and no work is ever done. AMD's libraries read the topology from the host's /sys, not from
 * here. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <linux/kfd_ioctl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define NEXT(name) __typeof__(&name) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static uint32_t apertures(struct kfd_process_device_apertures *of, uint32_t room) {
    uint32_t count = 0;
    for (int node = 0; count < room; node++) {
        char path[PATH_MAX];
        uint32_t id = 0;
        snprintf(path, sizeof path, "/sys/devices/virtual/kfd/kfd/topology/nodes/%d/gpu_id", node);
        FILE *file = fopen(path, "r");
        if (!file) break;
        if (fscanf(file, "%u", &id) != 1) id = 0;
        fclose(file);
        if (id)
            of[count++] = (struct kfd_process_device_apertures){
                .lds_base = 0x1000000000000, .lds_limit = 0x10000ffffffff, .scratch_base = 0x2000000000000,
                .scratch_limit = 0x20000ffffffff, .gpuvm_base = 0x4000, .gpuvm_limit = 0x7fffffffffff, .gpu_id = id};
    }
    return count;
}

int ioctl(int fd, unsigned long request, ...) {
    static uint64_t handles;
    static uint32_t events;
    static volatile int was_set;
    va_list rest;
    va_start(rest, request);
    void *arg = va_arg(rest, void *);
    va_end(rest);
    NEXT(ioctl);
    if (_IOC_TYPE(request) != AMDKFD_IOCTL_BASE) return next(fd, request, arg);
    switch (request) {
    case AMDKFD_IOC_GET_VERSION:
        *(struct kfd_ioctl_get_version_args *)arg = (struct kfd_ioctl_get_version_args){1, 17};
        return 0;
    case AMDKFD_IOC_GET_PROCESS_APERTURES_NEW: {
        struct kfd_ioctl_get_process_apertures_new_args *of = arg;
        of->num_of_nodes = apertures((void *)(uintptr_t)of->kfd_process_device_apertures_ptr, of->num_of_nodes);
        return 0;
    }
    case AMDKFD_IOC_ALLOC_MEMORY_OF_GPU:
        ((struct kfd_ioctl_alloc_memory_of_gpu_args *)arg)->handle = ++handles;
        return 0;
    case AMDKFD_IOC_MAP_MEMORY_TO_GPU:
    case AMDKFD_IOC_UNMAP_MEMORY_FROM_GPU: {
        struct kfd_ioctl_map_memory_to_gpu_args *of = arg;
        of->n_success = of->n_devices;
        return 0;
    }
    case AMDKFD_IOC_CREATE_EVENT: {
        struct kfd_ioctl_create_event_args *of = arg;
        of->event_id = of->event_slot_index = ++events;
        return 0;
    }
    case AMDKFD_IOC_SET_EVENT:
        was_set = 1;
        return 0;
    case AMDKFD_IOC_WAIT_EVENTS:
        usleep(1000);
        ((struct kfd_ioctl_wait_events_args *)arg)->wait_result =
            was_set ? KFD_IOC_WAIT_RESULT_COMPLETE : KFD_IOC_WAIT_RESULT_TIMEOUT;
        return 0;
    case AMDKFD_IOC_SVM:
        errno = EPERM;
        return -1;
    default:
        return 0;
    }
}

/* Map ordinary memory in place of a device node's. */
typedef void *(*mapper)(void *, size_t, int, int, int, off_t);
static void *map(mapper next, void *at, size_t size, int how, int flags, int fd, off_t offset) {
    struct stat of;
    if (fd < 0 || fstat(fd, &of) || !S_ISCHR(of.st_mode)) return next(at, size, how, flags, fd, offset);
    return next(at, size, how, (flags & ~MAP_SHARED) | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

void *mmap(void *at, size_t size, int how, int flags, int fd, off_t offset) {
    NEXT(mmap);
    return map(next, at, size, how, flags, fd, offset);
}

void *mmap64(void *at, size_t size, int how, int flags, int fd, off_t offset) {
    NEXT(mmap64);
    return map(next, at, size, how, flags, fd, offset);
}

/* libdrm_amdgpu asks a render node for facts that /sys lacks: the family of the GPU, and the name of the card. */
int amdgpu_device_initialize(int fd, uint32_t *major, uint32_t *minor, void **device) {
    *major = 3, *minor = 57, *device = (void *)(intptr_t)(dup(fd) + 1);
    return 0;
}

int amdgpu_device_get_fd(void *device) { return (int)(intptr_t)device - 1; }
int amdgpu_device_deinitialize(void *device) { return close(amdgpu_device_get_fd(device)); }
const char *amdgpu_get_marketing_name(void *device) { return device ? "" : NULL; }

int amdgpu_query_gpu_info(void *device, void *info) {
    (void)device, (void)info;
    return 0;
}
