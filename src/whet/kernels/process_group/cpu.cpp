// A group of processes, for callers outside.
#include "kernel.h"

#include "../entry.h"

WHET_EXPORT size_t whet_group_bytes(const whet::GroupSizes* sizes) { return whet::Group::bytes(*sizes); }

// The memory, which all processes share and which began as zeros, stays the caller's until whet_group_free.
WHET_EXPORT void* whet_group_new(const whet::GroupSizes* sizes, void* memory) {
  return new whet::Group(*sizes, static_cast<uint8_t*>(memory));
}

WHET_EXPORT void whet_group_free(void* group) { delete static_cast<whet::Group*>(group); }

WHET_EXPORT void* whet_group_logits(void* group) { return static_cast<whet::Group*>(group)->logits(); }

WHET_EXPORT void whet_group_end(void* group) { static_cast<whet::Group*>(group)->end(); }

WHET_EXPORT void whet_group_fail(void* group, int32_t rank) { static_cast<whet::Group*>(group)->fail(rank); }

// 0, or 1 + the rank of a process that has ended or did not answer in time.
WHET_EXPORT int whet_group_failed(void* group) { return static_cast<whet::Group*>(group)->failed(); }

// The nanoseconds that this process has waited for others and added what they have.
WHET_EXPORT size_t whet_group_waited(void* group) { return static_cast<whet::Group*>(group)->waited_ns(); }
