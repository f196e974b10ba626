//! A pseudo-terminal in which the built program runs.

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Termios, Winsize, tcgetattr, tcsetwinsize};
use std::{
    fs::File,
    io::{Read, Write},
    os::fd::OwnedFd,
    path::Path,
    process::{Child, Command},
    sync::{Arc, Condvar, Mutex},
    time::{Duration, Instant},
};

/// How long the program may take to show something, on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Everything that was written to a terminal.
#[derive(Default)]
struct Written {
    bytes: Mutex<Vec<u8>>,
    changed: Condvar,
}

pub struct Terminal {
    main: File,
    program: OwnedFd,
    written: Arc<Written>,
}

impl Terminal {
    pub fn new(columns: u16, rows: u16) -> Self {
        let main = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&main).unwrap();
        unlockpt(&main).unwrap();
        let name = ptsname(&main, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let program = open(name, flags, Mode::empty()).unwrap();
        let terminal = Self { main: main.into(), program, written: Arc::default() };
        terminal.resize(columns, rows);
        let (mut reader, written) = (terminal.main.try_clone().unwrap(), terminal.written.clone());
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // An error says that the other side is closed.
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                written.bytes.lock().unwrap().extend_from_slice(&buffer[..count]);
                written.changed.notify_all();
            }
        });
        terminal
    }

    /// Starts the program with this as its controlling terminal.
    pub fn spawn(&self, state: &Path, arguments: &[&str]) -> Child {
        let side = || self.program.try_clone().unwrap();
        Command::new("setsid")
            .args(["--ctty", "--wait", env!("CARGO_BIN_EXE_forebay")])
            .args(arguments)
            .env("FOREBAY_STATE", state)
            .env("TERM", "xterm-256color")
            .env_remove("NO_COLOR")
            .stdin(side())
            .stdout(side())
            .stderr(side())
            .spawn()
            .unwrap()
    }

    pub fn resize(&self, columns: u16, rows: u16) {
        let size = Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.main, size).unwrap();
    }

    /// Types keys.
    pub fn press(&self, keys: &str) {
        (&self.main).write_all(keys.as_bytes()).unwrap();
    }

    /// Everything that was written so far.
    pub fn written(&self) -> String {
        String::from_utf8_lossy(&self.written.bytes.lock().unwrap()).into_owned()
    }

    /// Waits until a text was written behind the first `from` bytes. Returns the bytes up to its
    /// end.
    pub fn wait_for(&self, text: &str, from: usize) -> usize {
        let until = Instant::now() + PATIENCE;
        let mut bytes = self.written.bytes.lock().unwrap();
        loop {
            let behind = bytes.get(from..).unwrap_or_default();
            let found = behind.windows(text.len()).position(|part| part == text.as_bytes());
            if let Some(at) = found {
                return from + at + text.len();
            }
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "no {text:?} in {}", String::from_utf8_lossy(&bytes));
            bytes = self.written.changed.wait_timeout(bytes, left).unwrap().0;
        }
    }

    pub fn settings(&self) -> Termios {
        tcgetattr(&self.program).unwrap()
    }

    pub fn has_echo(&self) -> bool {
        self.settings().local_modes.contains(LocalModes::ECHO)
    }
}

/// The settings of a terminal, for comparisons.
pub fn shown(settings: &Termios) -> String {
    format!(
        "{:?} {:?} {:?} {:?}",
        settings.input_modes, settings.output_modes, settings.control_modes, settings.local_modes
    )
}
