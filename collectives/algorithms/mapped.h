#pragma once

#include "collectives/algorithms/algorithm.h"

namespace isthmus {

// Collectives of one node whose ranks share memory: no message, only copies, reductions, and
// progress lines. Every rank announces the operation on line 0 and awaits everyone's announcement
// before it writes the output: a rank that calls something else is seen before a user's byte is
// touched.
//
// mapped_pieces.h has the ways to go through data piece by piece.

// Payload within the announcement line.
Result<Schedule> line_all_reduce(const Request& request);
Result<Schedule> line_all_gather(const Request& request);
Result<Schedule> line_broadcast(const Request& request);

// Payload within the group's slot of the operation.
Result<Schedule> slot_all_reduce(const Request& request);
Result<Schedule> slot_all_gather(const Request& request);
Result<Schedule> line_reduce_scatter(const Request& request);
Result<Schedule> slot_reduce_scatter(const Request& request);
Result<Schedule> slot_broadcast(const Request& request);

// Every rank reads everyone's whole data, piece by piece through `slots` staging units.
Result<Schedule> flat_all_reduce(const Request& request);

// Per piece every rank reduces one slice of it and reads the others' results.
Result<Schedule> slice_all_reduce(const Request& request);

// Piece by piece through staging.
Result<Schedule> staged_all_gather(const Request& request);
Result<Schedule> staged_reduce_scatter(const Request& request);
Result<Schedule> staged_broadcast(const Request& request);

// What goes to a root, or comes from it: in the line, in the slot, and piece by piece.
Result<Schedule> line_reduce(const Request& request);
Result<Schedule> slot_reduce(const Request& request);
Result<Schedule> flat_reduce(const Request& request);
Result<Schedule> line_gather(const Request& request);
Result<Schedule> slot_gather(const Request& request);
Result<Schedule> staged_gather(const Request& request);
Result<Schedule> slot_scatter(const Request& request);
Result<Schedule> staged_scatter(const Request& request);

// Per piece every rank reduces one slice of it, and the root reads the results.
Result<Schedule> slice_reduce(const Request& request);

// Every rank shows a block for every other one.
Result<Schedule> line_all_to_all(const Request& request);
Result<Schedule> slot_all_to_all(const Request& request);
Result<Schedule> staged_all_to_all(const Request& request);

Result<Schedule> line_barrier(const Request& request);

}  // namespace isthmus
