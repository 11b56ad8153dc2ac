// What every Objective-C source sees, as Apple's <objc/objc.h> has it for 64-bit ARM.
#pragma once

typedef bool BOOL;

#define YES __objc_yes
#define NO __objc_no
#undef nil // PyTorch's headers define it for C++
#define nil nullptr
#define Nil nullptr
