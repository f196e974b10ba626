//! Formats numbers with about three digits and a unit.

/// A number of bytes: `512 B`, `1.5 GiB`, `128 MiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    // A value that rounds to 1024 is shown as 1.0 of the next unit.
    while value >= 1023.5 {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", short(value, unit > 0), UNITS[unit])
}

/// A count: `950`, `1.2 k`, `3.4 M`, `12 G`.
pub(crate) fn count(count: u64) -> String {
    const UNITS: [&str; 7] = ["", " k", " M", " G", " T", " P", " E"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 999.5 {
        value /= 1000.0;
        unit += 1;
    }
    format!("{}{}", short(value, unit > 0), UNITS[unit])
}

/// A ratio in percent: `87.5 %`; a dash for `None`.
pub(super) fn percent(ratio: Option<f64>) -> String {
    match ratio {
        Some(ratio) => format!("{:.1} %", ratio * 100.0),
        None => "-".into(),
    }
}

/// A time: `42 s`, `5 min`, `2 h 7 min`, `3 d 4 h`.
pub(super) fn duration(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min"),
        (0, _, _) => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

/// A latency: `850 us`, `4.2 ms`, `1.5 s`.
pub(super) fn micros(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} us"),
        1_000..1_000_000 => format!("{} ms", short(us as f64 / 1e3, true)),
        _ => format!("{} s", short(us as f64 / 1e6, true)),
    }
}

/// A measured latency: `4.2 us`, `42 us`, `4.2 ms`, `1.5 s`.
pub(super) fn latency_us(us: f64) -> String {
    match us {
        ..999.5 => format!("{} us", short(us, true)),
        ..999_500.0 => format!("{} ms", short(us / 1e3, true)),
        _ => format!("{} s", short(us / 1e6, true)),
    }
}

/// Rounds to one decimal below ten if the value has a fraction, otherwise to an integer.
fn short(value: f64, has_fraction: bool) -> String {
    if has_fraction && value < 9.95 { format!("{value:.1}") } else { format!("{value:.0}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_at_most_four_digits() {
        for (value, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (10 << 20, "10 MiB"),
            ((1 << 30) - 1, "1.0 GiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(bytes(value), text);
        }
        for (value, text) in
            [(0, "0"), (999, "999"), (1000, "1.0 k"), (999_949, "1.0 M"), (u64::MAX, "18 E")]
        {
            assert_eq!(count(value), text);
        }
    }

    #[test]
    fn latencies_change_their_unit_where_they_round_to_it() {
        for (us, text) in [
            (0.0, "0.0 us"),
            (4.24, "4.2 us"),
            (999.4, "999 us"),
            (999.5, "1.0 ms"),
            (42_000.0, "42 ms"),
            (999_500.0, "1.0 s"),
            (61e6, "61 s"),
        ] {
            assert_eq!(latency_us(us), text);
        }
    }

    #[test]
    fn parts_and_times_are_short() {
        assert_eq!(percent(Some(0.875)), "87.5 %");
        assert_eq!(percent(None), "-");
        for (seconds, text) in
            [(59, "59 s"), (60, "1 min"), (3725, "1 h 2 min"), (86_400, "1 d 0 h")]
        {
            assert_eq!(duration(seconds), text);
        }
    }
}
