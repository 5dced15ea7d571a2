//! Gives the library the name by which cuDNN is asked for: once a process has opened it by its path, whoever asks for
//! `libcudnn.so` is given this one, on a machine with CUDA too.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcudnn.so");
    }
}
