//! The program: arguments in, an exit code out. 0 is good, 1 is failure, 2 is usage.

use std::process::ExitCode;

mod cli;
mod commands;
mod mount;
#[warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
mod text;

fn main() -> ExitCode {
    mount_tensors::sys::close_inherited_files();
    mount_tensors::sys::raise_file_limit();
    mount_tensors::sys::ignore_file_size_signal();
    match cli::run() {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            // Nothing can be done about a terminal that is gone.
            let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("mount-tensors: {failure}\n").as_bytes());
            ExitCode::from(1)
        }
    }
}
