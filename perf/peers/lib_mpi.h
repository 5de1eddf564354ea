#pragma once

#include <cstddef>

#include <mpi.h>

// Any MPI. Calls block; one thread; the communicator is MPI_COMM_WORLD.
class Lib {
 public:
  static constexpr bool kAllToAll = true;

  Lib(int* argc, char*** argv) {
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }

  ~Lib() { MPI_Finalize(); }

  Lib(const Lib&) = delete;
  Lib& operator=(const Lib&) = delete;

  int rank() const { return rank_; }

  int size() const { return size_; }

  void barrier() { MPI_Barrier(MPI_COMM_WORLD); }

  double max(double x) {
    MPI_Allreduce(MPI_IN_PLACE, &x, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return x;
  }

  void all_reduce(float* buffer, std::size_t count) {
    MPI_Allreduce(MPI_IN_PLACE, buffer, number(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }

  void all_gather(float* buffer, std::size_t count) {
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, buffer, number(count), MPI_FLOAT,
                  MPI_COMM_WORLD);
  }

  // Returns where this rank's block is.
  float* reduce_scatter(float* buffer, std::size_t count) {
    MPI_Reduce_scatter_block(MPI_IN_PLACE, buffer, number(count), MPI_FLOAT, MPI_SUM,
                             MPI_COMM_WORLD);
    return buffer;
  }

  void broadcast(float* buffer, std::size_t count, int root) {
    MPI_Bcast(buffer, number(count), MPI_FLOAT, root, MPI_COMM_WORLD);
  }

  void all_to_all(float* in, float* out, std::size_t count) {
    MPI_Alltoall(in, number(count), MPI_FLOAT, out, number(count), MPI_FLOAT, MPI_COMM_WORLD);
  }

 private:
  static int number(std::size_t count) { return static_cast<int>(count); }

  int rank_ = 0;
  int size_ = 1;
};
