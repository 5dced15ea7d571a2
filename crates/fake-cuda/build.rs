//! Gives the library the name by which the CUDA driver is asked for: once a process has opened it by its path, whoever asks
//! for `libcuda.so` is given this one, on a machine with a driver too.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
    }
}
