/* The objects that gc.freeze() hid from Python's collector, and so from gc.get_objects(). */
#ifndef KINETOSCOPE_FROZEN_OBJECTS_H
#define KINETOSCOPE_FROZEN_OBJECTS_H

struct _object;

#ifdef __cplusplus
extern "C" {
#endif

/* [GIL] Appends them to the list `into`. 0, or -1 with an exception set. */
__attribute__((visibility("hidden"))) int kinetoscope_list_frozen(struct _object* into);

#ifdef __cplusplus
}
#endif

#endif
