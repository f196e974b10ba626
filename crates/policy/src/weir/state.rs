//! The state of a resident line of [`super::Weir`], in one byte.

use super::promotion::PromotionClass;

/// Maximum hits counted for a line. In main, each hit spares the line once when its turn to be
/// evicted comes.
pub(super) const HITS_MAX: u8 = 3;

/// The list that a resident line is in. The small queue has two: the window, which is its newer
/// part, and the older part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LineQueue {
    Window,
    Small,
    Main,
    Waiting,
}

/// The state of a resident line, in one byte.
#[derive(Clone, Copy)]
pub(super) struct LineState(pub(super) u8);

/// [`LineState::after_hit`] of each state: a hit takes one load instead of branches that are often
/// mispredicted.
pub(super) static AFTER_HIT: [LineState; 256] = {
    let mut table = [LineState(0); 256];
    let mut bits = 0;
    while bits < table.len() {
        table[bits] = LineState(bits as u8).after_hit();
        bits += 1;
    }
    table
};

/// [`LineState::after_write`] of each state.
pub(super) static AFTER_WRITE: [LineState; 256] = {
    let mut table = [LineState(0); 256];
    let mut bits = 0;
    while bits < table.len() {
        table[bits] = LineState(bits as u8).after_write();
        bits += 1;
    }
    table
};

/// From the lowest bit: two bits of the queue, two of the hits; in the small queue, a bit for a
/// line of a stream and one for its predicted hit, and a bit for a line that a write brought and
/// one for the first read of it; in main, four bits of the class; for a waiting line, the parity of
/// its forecast.
impl LineState {
    const STREAM_BIT: u8 = 1 << 4;
    /// Set for a line of a stream until its predicted hit.
    const PREDICTED_BIT: u8 = 1 << 5;
    /// Set for a line that entered the cache by a write.
    const WRITTEN_BIT: u8 = 1 << 6;
    /// Set for such a line that was read in the older part of the small queue.
    const READ_BIT: u8 = 1 << 7;

    /// The state of a line that enters the small queue.
    pub(super) const fn new(queue: LineQueue) -> Self {
        Self(queue as u8)
    }

    /// The state of a line that was read ahead.
    pub(super) const fn stream() -> Self {
        Self(LineQueue::Small as u8 | Self::STREAM_BIT | Self::PREDICTED_BIT)
    }

    /// The state of a line that enters the cache by a write.
    pub(super) const fn written(self) -> Self {
        Self(self.0 | Self::WRITTEN_BIT)
    }

    /// The state of a line that moves from the window to the older part.
    pub(super) const fn in_small(self) -> Self {
        Self(LineQueue::Small as u8 | self.0 & Self::WRITTEN_BIT)
    }

    /// The state of a line that was read once, as predicted.
    pub(super) const fn used_stream() -> Self {
        Self(LineQueue::Small as u8 | Self::STREAM_BIT)
    }

    /// The state of a line that waits for its use.
    pub(super) const fn waiting(forecast: u8) -> Self {
        Self(LineQueue::Waiting as u8 | forecast << 4)
    }

    /// The parity of the forecast of a waiting line.
    pub(super) const fn forecast(self) -> u8 {
        self.0 >> 4
    }

    /// The state of a line that enters main.
    pub(super) const fn main(class: PromotionClass) -> Self {
        Self(LineQueue::Main as u8 | class << 4)
    }

    pub(super) const fn queue(self) -> LineQueue {
        match self.0 & 3 {
            0 => LineQueue::Window,
            1 => LineQueue::Small,
            2 => LineQueue::Main,
            _ => LineQueue::Waiting,
        }
    }

    pub(super) const fn hits(self) -> u8 {
        (self.0 >> 2) & 3
    }

    pub(super) const fn is_stream(self) -> bool {
        self.0 & Self::STREAM_BIT != 0
            && matches!(self.queue(), LineQueue::Window | LineQueue::Small)
    }

    /// Whether it has no hits and none is predicted.
    pub(super) const fn is_unhit(self) -> bool {
        self.hits() == 0 && !self.is_predicted()
    }

    /// Whether it is a line of a stream without any hit.
    pub(super) const fn is_predicted(self) -> bool {
        self.is_stream() && self.0 & Self::PREDICTED_BIT != 0
    }

    pub(super) const fn is_written(self) -> bool {
        self.0 & Self::WRITTEN_BIT != 0
            && matches!(self.queue(), LineQueue::Window | LineQueue::Small)
    }

    pub(super) const fn was_read(self) -> bool {
        self.0 & Self::READ_BIT != 0
    }

    /// Whether a write brought the line, and no read of it counted.
    pub(super) const fn is_unread(self) -> bool {
        self.is_written() && !self.was_read()
    }

    /// The class of a line in main whose outcome has not been counted yet.
    pub(super) const fn class(self) -> PromotionClass {
        self.0 >> 4
    }

    /// The state after a hit.
    pub(super) const fn after_hit(self) -> Self {
        let counts_hit = self.hits() < HITS_MAX;
        match self.queue() {
            LineQueue::Main if counts_hit => Self(self.0 + (1 << 2)),
            LineQueue::Main => self,
            _ if self.0 & Self::PREDICTED_BIT != 0 => Self(self.0 & !Self::PREDICTED_BIT),
            LineQueue::Small => {
                let read = if self.is_written() { Self::READ_BIT } else { 0 };
                Self((self.0 | read) + if counts_hit { 1 << 2 } else { 0 })
            }
            LineQueue::Window | LineQueue::Waiting => self,
        }
    }

    /// The state after a write that counts as a hit.
    pub(super) const fn after_write(self) -> Self {
        let after = self.after_hit();
        if self.is_written() {
            Self(after.0 & !Self::READ_BIT | self.0 & Self::READ_BIT)
        } else {
            after
        }
    }

    /// Takes a hit of a line, if it has one. Nothing else changes.
    pub(super) const fn take_hit(&mut self) -> bool {
        let has_hit = self.hits() > 0;
        if has_hit {
            self.0 -= 1 << 2;
        }
        has_hit
    }

    /// Spends a hit of a line in main, and clears its class: the hit has been counted for it.
    pub(super) fn spend_hit(&mut self) {
        assert!(self.hits() > 0, "a line without hits spends one");
        self.0 = (self.0 & 0xf) - (1 << 2);
    }
}
