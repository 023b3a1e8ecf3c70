//! Which jobs somebody wants to see.

use super::{Job, JobId, QueueName};

/// Jobs by what never changes of them: AND between the lists, OR within one, and an empty list means "any".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// These very jobs, possibly none; `None`: any.
    pub jobs: Option<Vec<JobId>>,
    /// About one of these.
    pub subjects: Vec<String>,
    /// In one of these queues.
    pub queues: Vec<String>,
    /// Of one of these kinds.
    pub kinds: Vec<String>,
}

/// What never changes of a job, as far as an interest goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its id.
    pub id: JobId,
    /// Where it waits, or waited.
    pub queue: QueueName,
    /// What it does.
    pub kind: QueueName,
    /// What it is about.
    pub subject: Option<String>,
}

impl Interest {
    /// Whether the job is one of them.
    pub fn covers(&self, job: &Job) -> bool {
        self.covers_all_of(job.id, &job.queue, &job.kind, job.subject.as_deref())
    }

    /// The same, of a job that is no more.
    pub fn covered(&self, job: &Identity) -> bool {
        self.covers_all_of(job.id, &job.queue, &job.kind, job.subject.as_deref())
    }

    fn covers_all_of(&self, id: JobId, queue: &QueueName, kind: &QueueName, subject: Option<&str>) -> bool {
        let one_of = |wanted: &[String], value: &str| wanted.is_empty() || wanted.iter().any(|wanted| wanted == value);
        self.jobs.as_ref().is_none_or(|jobs| jobs.contains(&id))
            && (self.subjects.is_empty() || subject.is_some_and(|subject| one_of(&self.subjects, subject)))
            && one_of(&self.queues, queue.as_str())
            && one_of(&self.kinds, kind.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Timestamp;

    #[test]
    fn it_is_and_between_lists_and_or_within_one() {
        let (id, other) =
            (JobId::mint(Timestamp::from_millis(1), [1; 10]), JobId::mint(Timestamp::from_millis(1), [2; 10]));
        let name = |text| QueueName::parse(text).expect("a name");
        let job = Identity { id, queue: name("q"), kind: name("k"), subject: Some("s".to_owned()) };
        let texts = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let any = Interest::default;
        assert!(any().covered(&job));
        assert!(Interest { queues: texts("p q"), kinds: texts("k l"), subjects: texts("s"), ..any() }.covered(&job));
        assert!(!Interest { queues: texts("p q"), kinds: texts("l"), ..any() }.covered(&job));
        assert!(Interest { jobs: Some(vec![other, id]), ..any() }.covered(&job));
        assert!(!Interest { jobs: Some(vec![other]), ..any() }.covered(&job));
        assert!(!Interest { jobs: Some(Vec::new()), ..any() }.covered(&job));
        assert!(!Interest { subjects: texts("s"), ..any() }.covered(&Identity { subject: None, ..job }));
    }
}
