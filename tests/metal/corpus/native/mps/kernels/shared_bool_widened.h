#pragma once

struct Params {
  float scale;
  unsigned has_bias; // error: flag `has_bias` of the shared struct `Params` is widened to `unsigned`
};
