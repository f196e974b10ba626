//! The text of a trace: a header, and a line for each request.
//!
//! The fields are those of the traces that the lab replays, and two more: the time until the
//! request was answered, in microseconds, and how it was served. Both are empty for a request that
//! was not answered before it was written.

use super::shuffle::Shuffle;
use forebay_runtime::{Recorded, Served};
use std::time::Duration;

const HEADER: &str = "time_us,volume,op,offset_bytes,length_bytes,latency_us,served\n";

/// The fields before the offset: time in microseconds, volume, and whether it is a write.
type Head = (u64, usize, bool);
/// The fields behind it: length, and the answer's latency in microseconds.
type Tail = (u64, Option<(u64, Served)>);

/// The text of some fields, kept because the next request often has the same: those that arrive
/// together are usually answered together. This runs for each request that the server answers.
struct Repeated<K> {
    fields: Option<K>,
    text: Vec<u8>,
}

impl<K> Default for Repeated<K> {
    fn default() -> Self {
        Self { fields: None, text: Vec::new() }
    }
}

impl<K: PartialEq + Copy> Repeated<K> {
    fn text(&mut self, fields: K, format: impl FnOnce(K, &mut Vec<u8>)) -> &[u8] {
        if self.fields != Some(fields) {
            self.fields = Some(fields);
            self.text.clear();
            format(fields, &mut self.text);
        }
        &self.text
    }
}

/// The lines of a trace, in pieces.
pub(super) struct Lines {
    piece: Vec<u8>,
    head: Repeated<Head>,
    tail: Repeated<Tail>,
    /// Bytes of all pieces.
    bytes: u64,
    max_bytes: u64,
    requests: u64,
    /// The arrival of the first request: the time 0.
    first: Option<Duration>,
    /// The time of the last line.
    last: Duration,
    shuffle: Option<Shuffle>,
}

impl Lines {
    /// A trace of at most `max_bytes`, more than its header.
    pub(super) fn new(max_bytes: u64, shuffle: Option<Shuffle>) -> Self {
        Self {
            piece: HEADER.into(),
            head: Repeated::default(),
            tail: Repeated::default(),
            bytes: HEADER.len() as u64,
            max_bytes,
            requests: 0,
            first: None,
            last: Duration::ZERO,
            shuffle,
        }
    }

    /// Adds a request. Returns false if the trace would be too large, and adds nothing then.
    pub(super) fn add(&mut self, request: &Recorded) -> bool {
        let first = *self.first.get_or_insert(request.arrived);
        // Requests of two workers may be out of order if one of them was stalled.
        let time = request.arrived.saturating_sub(first).max(self.last);
        let before = self.piece.len();
        let (mut offset, mut left) = (request.offset, request.length);
        while left > 0 {
            let (place, len) = match &self.shuffle {
                None => (offset, left),
                Some(shuffle) => {
                    (shuffle.place(request.volume, offset), left.min(shuffle.until_border(offset)))
                }
            };
            self.line(time, request, place, len);
            (offset, left) = (offset + len, left - len);
        }
        let more = (self.piece.len() - before) as u64;
        if self.bytes + more > self.max_bytes {
            self.piece.truncate(before);
            return false;
        }
        self.bytes += more;
        self.requests += 1;
        self.last = time;
        true
    }

    fn line(&mut self, time: Duration, request: &Recorded, offset: u64, len: u64) {
        let head = (us(time), request.volume, request.is_write);
        let answer = request.answer.map(|(latency, served)| (us(latency), served));
        self.piece.extend_from_slice(self.head.text(head, format_head));
        push_number(&mut self.piece, offset);
        self.piece.extend_from_slice(self.tail.text((len, answer), format_tail));
    }

    /// Bytes of the piece that is not taken yet.
    pub(super) const fn piece_len(&self) -> usize {
        self.piece.len()
    }

    /// Takes the piece, which may be empty.
    pub(super) fn take_piece(&mut self) -> Vec<u8> {
        // The next piece will be about as long.
        let next = Vec::with_capacity(self.piece.len());
        std::mem::replace(&mut self.piece, next)
    }

    /// Requests in the trace.
    pub(super) const fn requests(&self) -> u64 {
        self.requests
    }

    /// Bytes of the trace.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }
}

fn format_head((time_us, volume, is_write): Head, text: &mut Vec<u8>) {
    push_number(text, time_us);
    push_number(text, volume as u64);
    text.extend_from_slice(if is_write { b"W," } else { b"R," });
}

fn format_tail((len, answer): Tail, text: &mut Vec<u8>) {
    push_number(text, len);
    match answer {
        Some((latency_us, served)) => {
            push_number(text, latency_us);
            text.extend_from_slice(served.name().as_bytes());
        }
        None => text.push(b','),
    }
    text.push(b'\n');
}

/// Adds a field. Not with `write!`, which takes several times as long.
fn push_number(text: &mut Vec<u8>, number: u64) {
    text.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    text.push(b',');
}

/// Whole microseconds.
fn us(time: Duration) -> u64 {
    time.as_secs() * 1_000_000 + u64::from(time.subsec_micros())
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_runtime::Uncached;

    const US: Duration = Duration::from_micros(1);

    fn read(arrived_us: u32, offset: u64, length: u64) -> Recorded {
        let answer = Some((US * 42, Served::Pool));
        Recorded { arrived: US * arrived_us, volume: 1, is_write: false, offset, length, answer }
    }

    fn text(lines: &mut Lines) -> String {
        String::from_utf8(lines.take_piece()).unwrap()
    }

    #[test]
    fn a_line_has_the_fields_of_the_header() {
        let mut lines = Lines::new(1 << 20, None);
        let missed = Some((US * 7000, Served::Uncached(Uncached::Miss)));
        assert!(lines.add(&read(500, 4096, 512)));
        assert!(lines.add(&Recorded { is_write: true, answer: missed, ..read(510, 0, 8192) }));
        assert!(lines.add(&Recorded { answer: None, ..read(505, 1 << 40, 1) }), "out of order");
        let expected =
            "0,1,R,4096,512,42,pool\n10,1,W,0,8192,7000,miss\n10,1,R,1099511627776,1,,\n";
        assert_eq!(text(&mut lines), format!("{HEADER}{expected}"));
        assert_eq!((lines.requests(), lines.bytes()), (3, (HEADER.len() + expected.len()) as u64));
        assert_eq!(text(&mut lines), "");
    }

    #[test]
    fn a_trace_ends_before_it_is_too_large() {
        let line = "0,1,R,4096,512,42,pool\n";
        let max_bytes = (HEADER.len() + 2 * line.len()) as u64;
        let mut lines = Lines::new(max_bytes, None);
        let added = [(); 3].map(|()| lines.add(&read(500, 4096, 512)));
        assert_eq!(added, [true, true, false]);
        assert_eq!(text(&mut lines), format!("{HEADER}{line}{line}"));
        assert_eq!((lines.requests(), lines.bytes()), (2, max_bytes));
    }

    #[test]
    fn a_request_over_a_border_of_shuffled_regions_becomes_two_lines() {
        const GIB: u64 = 1 << 30;
        let mut lines = Lines::new(1 << 20, Some(Shuffle::new(vec![GIB, 64 * GIB])));
        assert!(lines.add(&read(500, 7 * GIB - 4096, 12288)));
        let text = text(&mut lines);
        let rows = text.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>());
        let places = rows.map(|row| [row[3], row[4]].map(|text| text.parse::<u64>().unwrap()));
        let places: Vec<_> = places.collect();
        let in_region = places.iter().map(|[offset, len]| (offset % GIB, *len));
        assert_eq!(in_region.collect::<Vec<_>>(), [(GIB - 4096, 4096), (0, 8192)]);
        assert_eq!(lines.requests(), 1);
    }
}
