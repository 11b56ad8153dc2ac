#pragma once

struct Params {
  float scale;
  bool causal; // error: bool member `causal` of the shared struct `Params` stands before `size`
  unsigned size;
};
