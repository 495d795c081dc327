// What a walk over a line is done for: pricing a budget, or writing the work list.
#pragma once

#include <cstdint>

#include "planner/budget.h"
#include "planner/line.h"
#include "planner/split.h"

namespace heddle {

// A walk's load, without writing anything.
struct Pricing : Load {
  void open_cta(std::int64_t cost) { current = cost; }
  void whole(const StreamRun&, int, int, std::int64_t cost) { current += cost; }
  void piece(const StreamRun&, int, std::int64_t, std::int64_t, std::int64_t cost) {
    current += cost;
  }
};

// Writes items and borders as the walk finds them. An item is written once, when its place is
// known: to copy one that has just been written would wait for its stores.
class LineWriter {
 public:
  LineWriter(const SplitOutput& out, int num_heads) : out_(out), num_heads_(num_heads) {
    out_.cta_begin[0] = 0;
  }

  void open_cta(std::int64_t cost) { load.current = cost; }
  void whole(const StreamRun& run, int head_begin, int head_end, std::int64_t cost) {
    load.current += cost;
    if (run.item.request != request_) close_request();
    several_tiles_ |= items > request_items_ && run.item.row_begin != row_begin_;
    request_ = run.item.request;
    row_begin_ = run.item.row_begin;
    const Share share{&run, head_begin, head_end, run.item.tile_begin, run.item.tile_end};
    if (items == cta_items_) {
      first_ = share;
    } else {
      share.write(out_.items[items]);
    }
    ++items;
  }

  // The first piece of a stream goes before the whole items of its CTA, so that it has been
  // published when the last piece, the last item of a later CTA, takes it.
  void piece(const StreamRun& run, int head, std::int64_t begin, std::int64_t end,
             std::int64_t cost) {
    load.current += cost;
    const Share share{&run, head, head + 1, run.item.tile_begin + static_cast<std::int32_t>(begin),
                      run.item.tile_begin + static_cast<std::int32_t>(end)};
    if (begin == 0) first_partial_ = partials;
    if (end == run.num_tiles()) {
      last_ = share;
      last_partial_ = first_partial_;
      last_join_ = partials - first_partial_;
      ++joins;
      return;
    }
    close_request();
    WorkItem& front = out_.items[cta_items_];
    if (first_.run != nullptr)
      write_first(out_.items[items]);
    else if (items > cta_items_)
      out_.items[items] = front;
    share.write(front);
    front.partial = partials++;
    request_items_ = ++items;
  }

  void close_cta() {
    close_request();
    if (first_.run != nullptr) write_first(out_.items[cta_items_]);
    if (last_.run != nullptr) write_last(out_.items[items++]);
    request_items_ = items;
    load.close_cta();
    out_.cta_begin[++ctas_] = items;
    cta_items_ = items;
  }

  Load load;
  int items = 0;
  int partials = 0;
  int joins = 0;

 private:
  // What an item takes of a run.
  struct Share {
    const StreamRun* run = nullptr;
    std::int32_t head_begin, head_end, tile_begin, tile_end;

    void write(WorkItem& to) const {
      write_item(to, *run, head_begin, head_end, tile_begin, tile_end);
    }
  };

  void write_first(WorkItem& to) {
    first_.write(to);
    first_.run = nullptr;
  }
  void write_last(WorkItem& to) {
    last_.write(to);
    to.partial = last_partial_;
    to.join = last_join_;
    last_.run = nullptr;
  }

  // Several query tiles of one request in this CTA.
  void close_request() {
    if (several_tiles_) {
      if (first_.run != nullptr) write_first(out_.items[cta_items_]);
      items = list_by_head(out_.items, request_items_, items, num_heads_, out_.scratch);
    }
    several_tiles_ = false;
    request_items_ = items;
  }

  SplitOutput out_;
  int num_heads_;
  int ctas_ = 0;
  int cta_items_ = 0;      // where the open CTA's items start
  int request_items_ = 0;  // where the open request's items in it start
  int first_partial_ = 0;  // slot of the open stream's first piece
  Share first_;            // the open CTA's first whole item, while a piece may still go before it
  Share last_;             // its last piece of a stream, if it has one
  int last_partial_ = 0, last_join_ = 0;
  std::int32_t request_ = -1;  // of the last item, and its query tile
  std::int32_t row_begin_ = 0;
  bool several_tiles_ = false;
};

}  // namespace heddle
