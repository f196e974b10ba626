//! The terminal while a page is shown again and again: the alternate screen, without a cursor and
//! without echo.

use forebay_terminal::page::Page;
use rustix::process::{Signal, getpid, kill_process};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use std::io::{self, Write};

/// Alternate screen, no cursor, no wrapping of long lines.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

/// The terminal. Dropping it restores what was there before.
pub(super) struct Screen {
    /// The settings of the terminal before; `None` if standard input is no terminal.
    before: Option<Termios>,
    is_entered: bool,
}

impl Screen {
    /// Switches to the alternate screen.
    ///
    /// # Errors
    /// The terminal cannot be written.
    pub(super) fn enter() -> io::Result<Self> {
        let mut screen = Self { before: tcgetattr(io::stdin()).ok(), is_entered: false };
        screen.show()?;
        Ok(screen)
    }

    fn show(&mut self) -> io::Result<()> {
        if let Some(before) = &self.before {
            let mut quiet = before.clone();
            quiet.local_modes.remove(LocalModes::ECHO);
            tcsetattr(io::stdin(), OptionalActions::Now, &quiet)?;
        }
        self.is_entered = true;
        write(ENTER)
    }

    /// Restores the terminal. What was typed meanwhile is dropped.
    fn leave(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.is_entered) {
            return Ok(());
        }
        let written = write(LEAVE);
        if let Some(before) = &self.before {
            tcsetattr(io::stdin(), OptionalActions::Flush, before)?;
        }
        written
    }

    /// Restores the terminal and stops this process, as the terminal requested. Sets the terminal
    /// up again when the process is continued.
    pub(super) fn suspend(&mut self) -> io::Result<()> {
        self.leave()?;
        kill_process(getpid(), Signal::STOP)?;
        self.show()
    }

    /// The height in lines.
    pub(super) fn height() -> usize {
        let rows = tcgetwinsize(io::stdout()).map_or(0, |window| window.ws_row);
        if rows == 0 { 24 } else { usize::from(rows) }
    }

    /// Replaces what is shown. Lines are overwritten and not cleared first, so nothing flickers.
    pub(super) fn draw(&self, page: &Page, color: bool) -> io::Result<()> {
        let lines: Vec<_> = page.lines(color).map(|line| format!("{line}\x1b[K")).collect();
        write(&format!("\x1b[H{}\x1b[J", lines.join("\r\n")))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _ = self.leave();
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}
