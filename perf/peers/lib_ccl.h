#pragma once

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <oneapi/ccl.hpp>

// oneCCL, which has no launcher: --rank, --size and --kvs (a file that does not exist yet, seen by
// every rank) come from the command line.
class Lib {
 public:
  static constexpr bool kAllToAll = true;

  Lib(int* argc, char*** argv) {
    std::string path;
    for (int i = 1; i + 1 < *argc; i += 2) {
      const std::string_view key = (*argv)[i];
      const char* value = (*argv)[i + 1];
      if (key == "--rank") {
        rank_ = std::atoi(value);
      } else if (key == "--size") {
        size_ = std::atoi(value);
      } else if (key == "--kvs") {
        path = value;
      }
    }
    ccl::init();
    group_.push_back(ccl::create_communicator(size_, rank_, meet(path)));
  }

  int rank() const { return rank_; }

  int size() const { return size_; }

  void barrier() { ccl::barrier(group_[0]).wait(); }

  double max(double x) {
    ccl::allreduce(&x, &x, 1, ccl::reduction::max, group_[0]).wait();
    return x;
  }

  void all_reduce(float* buffer, std::size_t count) {
    ccl::allreduce(buffer, buffer, count, ccl::reduction::sum, group_[0]).wait();
  }

  void all_gather(float* buffer, std::size_t count) {
    ccl::allgather(buffer + offset(count), buffer, count, group_[0]).wait();
  }

  float* reduce_scatter(float* buffer, std::size_t count) {
    float* mine = buffer + offset(count);
    ccl::reduce_scatter(buffer, mine, count, ccl::reduction::sum, group_[0]).wait();
    return mine;
  }

  void broadcast(float* buffer, std::size_t count, int root) {
    ccl::broadcast(buffer, count, root, group_[0]).wait();
  }

  void all_to_all(float* in, float* out, std::size_t count) {
    ccl::alltoall(in, out, count, group_[0]).wait();
  }

 private:
  // Rank 0 writes the address of its key-value store to the file, the others wait for it.
  ccl::shared_ptr_class<ccl::kvs> meet(const std::string& path) const {
    if (rank_ == 0) {
      auto kvs = ccl::create_main_kvs();
      const auto address = kvs->get_address();
      const std::string draft = path + ".tmp";
      std::ofstream(draft).write(address.data(), static_cast<std::streamsize>(address.size()));
      std::rename(draft.c_str(), path.c_str());
      return kvs;
    }
    ccl::kvs::address_type address;
    std::ifstream file(path);
    while (!file.is_open()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      file.open(path);
    }
    file.read(address.data(), static_cast<std::streamsize>(address.size()));
    return ccl::create_kvs(address);
  }

  std::size_t offset(std::size_t count) const { return static_cast<std::size_t>(rank_) * count; }

  int rank_ = 0;
  int size_ = 1;
  std::vector<ccl::communicator> group_;
};
