#pragma once

struct Params { // error: it has 32 bytes for the kernel, but 16 for the host
  unsigned size;
#ifdef __METAL__
  metal::uint3 sizes; // error: member `sizes` lies at byte 16 for the kernel, but at 4 for the host
#else
  unsigned sizes[3];
#endif
};
