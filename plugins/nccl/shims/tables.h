#pragma once

#include <cstddef>
#include <cstdint>

#include "plugins/nccl/shims/properties.h"

namespace isthmus::nccl::shims {

// ncclNet of each version, restated. All functions return ncclResult_t, an int.

using Log = void (*)(int level, unsigned long flags, const char* file, int line, const char* format,
                     ...);
using Profiler = int (*)(void** handle, int type, void* parent, std::int64_t id, void* data);

struct CommConfig {
  int traffic_class;  // -1: undefined
};

struct DeviceHandle;  // of network devices that the GPU drives: never made here

struct NetV6 {
  const char* name;
  int (*init)(Log);
  int (*devices)(int*);
  int (*get_properties)(int, PropertiesV6*);
  int (*listen)(int, void*, void**);
  int (*connect)(int, void*, void**);
  int (*accept)(void*, void**);
  int (*reg_mr)(void*, void*, int, int, void**);
  int (*reg_mr_dma_buf)(void*, void*, std::size_t, int, std::uint64_t, int, void**);
  int (*dereg_mr)(void*, void*);
  int (*isend)(void*, void*, int, int, void*, void**);
  int (*irecv)(void*, int, void**, int*, int*, void**, void**);
  int (*iflush)(void*, int, void**, int*, void**, void**);
  int (*test)(void*, int*, int*);
  int (*close_send)(void*);
  int (*close_recv)(void*);
  int (*close_listen)(void*);
};

static_assert(sizeof(NetV6) == 136);

// Versions 7 and 8, whose register calls differ in the type of the size.
template <typename Properties, typename Bytes>
struct NetV7To8 {
  const char* name;
  int (*init)(Log);
  int (*devices)(int*);
  int (*get_properties)(int, Properties*);
  int (*listen)(int, void*, void**);
  int (*connect)(int, void*, void**, DeviceHandle**);
  int (*accept)(void*, void**, DeviceHandle**);
  int (*reg_mr)(void*, void*, Bytes, int, void**);
  int (*reg_mr_dma_buf)(void*, void*, std::size_t, int, std::uint64_t, int, void**);
  int (*dereg_mr)(void*, void*);
  int (*isend)(void*, void*, int, int, void*, void**);
  int (*irecv)(void*, int, void**, int*, int*, void**, void**);
  int (*iflush)(void*, int, void**, int*, void**, void**);
  int (*test)(void*, int*, int*);
  int (*close_send)(void*);
  int (*close_recv)(void*);
  int (*close_listen)(void*);
  int (*get_device_mr)(void*, void*, void**);
  int (*irecv_consumed)(void*, int, void*);
};

using NetV7 = NetV7To8<PropertiesV7, int>;
using NetV8 = NetV7To8<PropertiesV8, std::size_t>;
static_assert(sizeof(NetV7) == 152 && sizeof(NetV8) == 152);

struct NetV9 {
  const char* name;
  int (*init)(Log);
  int (*devices)(int*);
  int (*get_properties)(int, PropertiesV9*);
  int (*listen)(int, void*, void**);
  int (*connect)(int, void*, void**, DeviceHandle**);
  int (*accept)(void*, void**, DeviceHandle**);
  int (*reg_mr)(void*, void*, std::size_t, int, void**);
  int (*reg_mr_dma_buf)(void*, void*, std::size_t, int, std::uint64_t, int, void**);
  int (*dereg_mr)(void*, void*);
  int (*isend)(void*, void*, std::size_t, int, void*, void**);
  int (*irecv)(void*, int, void**, std::size_t*, int*, void**, void**);
  int (*iflush)(void*, int, void**, int*, void**, void**);
  int (*test)(void*, int*, int*);
  int (*close_send)(void*);
  int (*close_recv)(void*);
  int (*close_listen)(void*);
  int (*get_device_mr)(void*, void*, void**);
  int (*irecv_consumed)(void*, int, void*);
  int (*make_virtual_device)(int*, Virtual<4>*);
};

static_assert(sizeof(NetV9) == 160);

struct NetV10 {
  const char* name;
  int (*init)(Log, Profiler);
  int (*devices)(int*);
  int (*get_properties)(int, PropertiesV9*);
  int (*listen)(int, void*, void**);
  int (*connect)(int, CommConfig*, void*, void**, DeviceHandle**);
  int (*accept)(void*, void**, DeviceHandle**);
  int (*reg_mr)(void*, void*, std::size_t, int, void**);
  int (*reg_mr_dma_buf)(void*, void*, std::size_t, int, std::uint64_t, int, void**);
  int (*dereg_mr)(void*, void*);
  int (*isend)(void*, void*, std::size_t, int, void*, void*, void**);
  int (*irecv)(void*, int, void**, std::size_t*, int*, void**, void**, void**);
  int (*iflush)(void*, int, void**, int*, void**, void**);
  int (*test)(void*, int*, int*);
  int (*close_send)(void*);
  int (*close_recv)(void*);
  int (*close_listen)(void*);
  int (*get_device_mr)(void*, void*, void**);
  int (*irecv_consumed)(void*, int, void*);
  int (*make_virtual_device)(int*, Virtual<4>*);
};

static_assert(sizeof(NetV10) == 160);

// Versions 11 and 12, which differ in the properties and in the virtual device.
template <typename Properties, std::size_t kDevices>
struct NetV11To12 {
  const char* name;
  int (*init)(void**, std::uint64_t, CommConfig*, Log, Profiler);
  int (*devices)(int*);
  int (*get_properties)(int, Properties*);
  int (*listen)(void*, int, void*, void**);
  int (*connect)(void*, int, void*, void**, DeviceHandle**);
  int (*accept)(void*, void**, DeviceHandle**);
  int (*reg_mr)(void*, void*, std::size_t, int, void**);
  int (*reg_mr_dma_buf)(void*, void*, std::size_t, int, std::uint64_t, int, void**);
  int (*dereg_mr)(void*, void*);
  int (*isend)(void*, void*, std::size_t, int, void*, void*, void**);
  int (*irecv)(void*, int, void**, std::size_t*, int*, void**, void**, void**);
  int (*iflush)(void*, int, void**, int*, void**, void**);
  int (*test)(void*, int*, int*);
  int (*close_send)(void*);
  int (*close_recv)(void*);
  int (*close_listen)(void*);
  int (*get_device_mr)(void*, void*, void**);
  int (*irecv_consumed)(void*, int, void*);
  int (*make_virtual_device)(int*, Virtual<kDevices>*);
  int (*finalize)(void*);
  int (*set_net_attributes)(void*, void*);
};

using NetV11 = NetV11To12<PropertiesV11, 4>;
using NetV12 = NetV11To12<PropertiesV12, 8>;
static_assert(sizeof(NetV11) == 176 && sizeof(NetV12) == 176);

}  // namespace isthmus::nccl::shims
