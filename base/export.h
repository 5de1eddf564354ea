#pragma once

// Marks what libisthmus.so exports; everything else is hidden.
#define ISTHMUS_API __attribute__((visibility("default")))
