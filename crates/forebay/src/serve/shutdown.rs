//! Whether the machine is shutting down.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long systemd may take to answer.
const TIMEOUT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(10);

/// Whether systemd says that it is shutting down, or rebooting, the machine. False if it does not
/// answer, or there is none.
pub(super) fn is_machine_stopping() -> bool {
    let mut command = Command::new("systemctl");
    command.arg("is-system-running").stdin(Stdio::null()).stderr(Stdio::null());
    let Ok(mut child) = command.stdout(Stdio::piped()).spawn() else { return false };
    let until = Instant::now() + TIMEOUT;
    while matches!(child.try_wait(), Ok(None)) {
        if Instant::now() >= until {
            let _ = child.kill();
            let _ = child.wait();
            return false;
        }
        std::thread::sleep(POLL);
    }
    let mut answer = String::new();
    let read = child.stdout.take().map(|mut out| out.read_to_string(&mut answer));
    matches!(read, Some(Ok(_))) && answer.trim() == "stopping"
}
