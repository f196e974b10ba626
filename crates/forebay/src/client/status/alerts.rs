//! Shows what is wrong, and what to do about it.

use forebay_api::{Alert, Severity};
use forebay_terminal::page::{Page, Piece, Style, cut};
use forebay_terminal::units::count;

/// The style of alerts.
pub(crate) const fn style_of(severity: Severity) -> Style {
    match severity {
        Severity::Error => Style::Error,
        Severity::Warning => Style::Warning,
    }
}

/// Alerts that differ only in what they are about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JoinedAlert<'a> {
    alert: &'a Alert,
    /// The volumes or devices, if there can be several.
    names: Vec<&'a str>,
}

/// Joins the alerts that differ only in what they are about.
pub(crate) fn joined<'a>(alerts: impl IntoIterator<Item = &'a Alert>) -> Vec<JoinedAlert<'a>> {
    let mut joined: Vec<JoinedAlert<'_>> = Vec::new();
    for alert in alerts {
        match joined.iter_mut().find(|one| one.is_like(alert)) {
            Some(one) => one.names.extend(alert.name.as_deref()),
            None => joined
                .push(JoinedAlert { alert, names: alert.name.iter().map(|it| &**it).collect() }),
        }
    }
    joined
}

impl JoinedAlert<'_> {
    /// Whether another alert differs only in what it is about.
    fn is_like(&self, other: &Alert) -> bool {
        let named_alike = Alert { name: other.name.clone(), ..self.alert.clone() };
        other.name.is_some() && named_alike == *other
    }

    /// How serious it is.
    pub(crate) const fn severity(&self) -> Severity {
        self.alert.severity
    }

    /// The alert without what to do.
    pub(crate) fn sentence(&self) -> String {
        format!("{}: {}", self.subject(), self.alert.text)
    }

    /// What it is about: `volume a`, `volumes a, b and 38 more`.
    fn subject(&self) -> String {
        let (kind, name) = (&self.alert.kind, |name: &&str| cut(name, NAME_WIDTH_MAX));
        match &self.names[..] {
            [] => kind.to_owned(),
            [one] => format!("{kind} {}", name(one)),
            names => {
                let shown: Vec<_> = names.iter().take(NAMES_MAX).map(name).collect();
                let more = match names.len() - shown.len() {
                    0 => String::new(),
                    more => format!(" and {} more", count(more as u64)),
                };
                let plural = if kind == "UPS" { "es" } else { "s" };
                format!("{kind}{plural} {}{more}", shown.join(", "))
            }
        }
    }
}

/// Names that an alert lists.
const NAMES_MAX: usize = 4;
/// The most columns that an alert uses for each name.
const NAME_WIDTH_MAX: usize = 40;

/// `2 errors, 1 warning`; empty without any.
pub(crate) fn summary(alerts: &[JoinedAlert<'_>]) -> String {
    let counts = Severity::ALL.map(|severity| {
        let alerts = alerts.iter().filter(|alert| alert.severity() == severity).count();
        let plural = if alerts == 1 { "" } else { "s" };
        (alerts > 0).then(|| format!("{alerts} {}{plural}", severity.as_str()))
    });
    counts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Adds at most `most` alerts to a page.
pub(crate) fn show(alerts: &[JoinedAlert<'_>], most: usize, page: &mut Page) {
    for alert in alerts.iter().take(most) {
        let severity = alert.severity();
        let (style, word) = (style_of(severity), severity.as_str());
        page.hanging(Piece::new(style, word), ALERTS_AT, Style::Plain, &alert.sentence());
        if let Some(remedy) = &alert.alert.remedy {
            let label = Piece::plain(format!("{:ALERTS_AT$}->", ""));
            page.hanging(label, ALERTS_AT + 3, Style::Plain, remedy);
        }
    }
    if let more @ 1.. = alerts.len().saturating_sub(most) {
        let text = format!("and {more} more, see `forebay status --all`");
        page.hanging(Piece::plain(""), ALERTS_AT, Style::Plain, &text);
    }
}

/// The column where the text of alerts begins.
const ALERTS_AT: usize = 9;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::status::samples::with_alerts;
    use forebay_api::{Mode, Status, VolumeState, VolumeStatus};

    fn text(alerts: &[JoinedAlert<'_>]) -> String {
        let mut page = Page::default();
        show(alerts, usize::MAX, &mut page);
        page.text(false)
    }

    fn named(name: impl Into<String>) -> VolumeStatus {
        VolumeStatus { name: name.into(), ..VolumeStatus::default() }
    }

    #[test]
    fn alike_alerts_are_one_and_errors_come_first() {
        let through = |n: usize| VolumeStatus {
            mode: Mode::WriteBack,
            effective_mode: Mode::WriteThrough,
            effective_mode_reason: Some("on battery".into()),
            ..named(format!("v{n}"))
        };
        let failing = VolumeStatus {
            state: VolumeState::Failing,
            state_reason: Some("the backing store refuses dirty data".into()),
            ..named("last")
        };
        let volumes = (0..6).map(through).chain([failing]).collect();
        let status = Status { volumes, ..Status::default() };
        let status = with_alerts(status);
        let found = joined(&status.alerts);
        assert_eq!(summary(&found), "1 error, 1 warning");
        assert_eq!(
            text(&found),
            "error    volume last: failing: the backing store refuses dirty data\n\
             \u{20}        -> see the server's log for the disk's error, and repair the disk\n\
             warning  volumes v0, v1, v2, v3 and 2 more: write-through instead of write-back:\n\
             \u{20}        on battery\n"
        );
        let stalled = Status {
            volumes: vec![VolumeStatus {
                state: VolumeState::Stalled,
                state_reason: Some("the disk has not answered a read for 12 s".into()),
                ..named("slow")
            }],
            ..Status::default()
        };
        assert_eq!(
            text(&joined(&with_alerts(stalled).alerts)),
            "error    volume slow: stalled: the disk has not answered a read for 12 s\n\
             \u{20}        -> check the disk and its paths, or the server behind it. \
             Requests wait\n\
             \u{20}           until it answers; `forebay slow` shows them\n"
        );
        let mut page = Page::default();
        show(&found, 1, &mut page);
        let end = "         and 1 more, see `forebay status --all`\n";
        assert!(page.text(false).ends_with(end), "{}", page.text(false));
    }
}
