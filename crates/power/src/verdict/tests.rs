//! The table of states.

use super::*;

fn reading(text: &str) -> Reading {
    Reading::from_lines(text).unwrap()
}

fn with_status(status: &str) -> Verdict {
    let text = format!("ups.status: {status}\nbattery.charge: 100\nbattery.runtime: 1800");
    judge(&reading(&text), &Rules::default())
}

fn with(values: &str) -> Verdict {
    judge(&reading(&values.replace(", ", "\n")), &Rules::default())
}

#[test]
fn only_line_power_with_harmless_words_is_safe() {
    for status in ["OL", "OL CHRG", "CHRG OL", "OL TRIM", "OL BOOST", "OL ECO", "OL HB"] {
        assert_eq!(with_status(status), Verdict::Safe, "{status}");
    }
}

#[test]
fn the_table_of_status_words() {
    for (status, word) in [
        ("OL RB", "not-ready"),
        ("OL LB", "not-ready"),
        ("OL BYPASS", "not-ready"),
        ("BYPASS", "not-ready"),
        ("OL OFF", "not-ready"),
        ("OFF", "not-ready"),
        ("OL CAL", "not-ready"),
        ("OL OVER", "not-ready"),
        ("OL ALARM", "not-ready"),
        ("OL DISCHRG", "not-ready"),
        ("OB", "on-battery"),
        ("OB DISCHRG", "on-battery"),
        ("CAL OB DISCHRG", "on-battery"),
        ("OB DISCHRG LB", "critical"),
        ("OL OB LB", "critical"),
        ("LB", "critical"),
        ("FSD OL", "critical"),
        ("FSD OB LB", "critical"),
        ("OL OB", "unknown"),
        ("WAIT", "unknown"),
        ("OL WAIT", "unknown"),
        ("", "unknown"),
        ("RB", "unknown"),
        ("ol", "unknown"),
        ("OLD", "unknown"),
    ] {
        assert_eq!(with_status(status).word(), word, "{status}");
        assert!(!with_status(status).to_string().is_empty());
    }
}

#[test]
fn the_table_of_values() {
    let ol = "ups.status: OL";
    for (values, word, part) in [
        ("battery.charge: 79, battery.runtime: 600", "safe", "bridged"),
        ("battery.charge: 78.9, battery.runtime: 600", "not-ready", "charged to 78.9 %"),
        ("battery.charge: 99, battery.runtime: 75", "not-ready", "last 75 s"),
        ("battery.charge: 99, battery.runtime: 76", "safe", ""),
        ("battery.charge: 99", "unknown", "does not say battery.runtime"),
        ("battery.runtime: 600", "unknown", "does not say battery.charge"),
        ("battery.charge: abc, battery.runtime: 600", "unknown", "'abc'"),
        ("battery.charge: 99, battery.runtime: -1", "unknown", "'-1'"),
        ("battery.charge: 99, battery.runtime: 600, ups.load: nan", "unknown", "ups.load"),
        ("battery.charge: 99, battery.runtime: 600, ups.load: 101", "not-ready", "overloaded"),
        ("battery.charge: 99, battery.runtime: 600, ups.load: 100", "safe", ""),
        ("battery.charge: 99, battery.runtime: 99, battery.runtime.low: 99", "not-ready", "low"),
        ("battery.charge: 99, battery.runtime: 99, ups.alarm: fan", "not-ready", "alarm: fan"),
    ] {
        let verdict = with(&format!("{ol}, {values}"));
        assert_eq!(verdict.word(), word, "{values}: {verdict}");
        assert!(verdict.to_string().contains(part), "{values}: {verdict}");
    }
    assert_eq!(with("battery.charge: 99").word(), "unknown");
}

#[test]
fn on_battery_low_values_are_critical_without_the_word() {
    for (values, word) in [
        ("battery.charge: 10, battery.runtime: 600", "on-battery"),
        ("battery.charge: 20, battery.charge.low: 20, battery.runtime: 600", "critical"),
        ("battery.charge: 99, battery.runtime: 60, battery.runtime.low: 120", "critical"),
        ("battery.runtime: 600", "on-battery"),
        ("battery.charge: 99", "unknown"),
        ("battery.charge: 99, battery.runtime: x", "unknown"),
    ] {
        assert_eq!(with(&format!("ups.status: OB, {values}")).word(), word, "{values}");
    }
    let left = with("ups.status: OB, battery.runtime: 600");
    assert_eq!(left, Verdict::OnBattery { left_seconds: 480 }, "80 % are believed");
}
