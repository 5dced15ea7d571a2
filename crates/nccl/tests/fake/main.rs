//! The backend and its communicators over the fake library, between threads and between processes; and what happens with
//! a library that is old, lacks functions or is not there.

mod aborts;
mod communicators;
mod host_device;
mod libraries;
mod matrix;
mod on_slot;
mod parts;
mod planes;
mod processes;
mod real;
mod support;
