/** One task over the steps: how its reward moved, and how the policy's turns changed. */
import { query, runUrl, useAnswer } from "../api";
import { Plot } from "../charts/plot";
import { conversationRows } from "../logic/conversation_diff";
import { several, signed, stepNumber } from "../logic/format";
import { visible } from "../logic/visible";
import { OutcomeBadge } from "../parts/badges";
import { DiffRow } from "../parts/diff_row";
import { Problem, Shell } from "../parts/shell";
import { paths } from "../logic/routes";
import { Link, place, setQuery } from "../router";
import type { EpisodeAnswer, TaskAnswer, TaskStep } from "../types";

type Pick = "best" | "typical" | "worst";
const PICKS: Pick[] = ["best", "typical", "worst"];

export function TaskPage({ id, task }: { id: string; task: string }) {
  const { data, error } = useAnswer<TaskAnswer>(runUrl(id, `/task?${query({ task })}`));
  const asked = place.value.query;
  const steps = data?.steps ?? [];
  const before = stepOf(steps, asked.get("a")) ?? steps[0];
  const after = stepOf(steps, asked.get("b")) ?? steps.at(-1);
  const pick = PICKS.find((name) => name === asked.get("pick")) ?? "best";
  return (
    <Shell crumbs={[{ label: "Runs", to: "/" }, { label: id, to: paths.run(id) }, { label: "Episodes", to: paths.episodes(id) }, { label: task }]} title={`${task} over steps`}>
      <div class="page-head">
        <h1>{visible(task)}</h1>
        <span class="muted">{several(steps.length, "step")}</span>
        <span class="spacer" />
        <fieldset class="segments">
          <legend>Episode</legend>
          {PICKS.map((name) => (
            <label key={name}>
              <input type="radio" name="pick" value={name} checked={pick === name} onChange={() => setQuery({ pick: name === "best" ? null : name })} />
              <span>{name}</span>
            </label>
          ))}
        </fieldset>
        <Link class="button" to={paths.episodes(id, query({ task }))}>All episodes of this task</Link>
      </div>
      {error && <Problem error={error} />}
      {data && (
        <section class="charts" aria-labelledby="course-title">
          <h2 id="course-title" class="visually-hidden">Over the steps</h2>
          <Plot
            title="Reward of this task"
            about="Mean, best and worst reward in the task's group, in each step that used the task."
            steps={steps.map((one) => stepNumber(one.step))}
            lines={[
              { label: "mean", colour: "--series-0", values: steps.map((one) => one.reward_mean), format: (v) => signed(v) },
              { label: "best", colour: "--scale-up", values: steps.map((one) => one.reward_max), format: (v) => signed(v) },
              { label: "worst", colour: "--scale-down", values: steps.map((one) => one.reward_min), format: (v) => signed(v) },
            ]}
            absent="No step has used this task yet."
          />
          <Solved steps={steps} />
        </section>
      )}
      {before && after && <Difference id={id} task={task} steps={steps} before={before} after={after} pick={pick} />}
    </Shell>
  );
}

function Solved({ steps }: { steps: TaskStep[] }) {
  return (
    <Plot
      title="Solved"
      about="Episodes of the group that solved the task, in each step that used the task."
      steps={steps.map((one) => stepNumber(one.step))}
      lines={[
        { label: "solved", colour: "--series-1", values: steps.map((one) => one.solved) },
        { label: "of", colour: "--muted", values: steps.map((one) => one.episodes) },
      ]}
      range={[0, null]}
      absent="No step has used this task yet."
    />
  );
}

interface DifferenceProps {
  id: string;
  task: string;
  steps: TaskStep[];
  before: TaskStep;
  after: TaskStep;
  pick: Pick;
}

function Difference({ id, task, steps, before, after, pick }: DifferenceProps) {
  const one = useAnswer<EpisodeAnswer>(runUrl(id, `/episode?${query({ step: before.step, task, member: memberOf(before, pick) })}`));
  const other = useAnswer<EpisodeAnswer>(runUrl(id, `/episode?${query({ step: after.step, task, member: memberOf(after, pick) })}`));
  const error = one.error ?? other.error;
  return (
    <section aria-labelledby="diff-title">
      <h2 id="diff-title">What changed</h2>
      {error && <Problem error={error} />}
      <div class="diff-heads">
        <Side id={id} label="Before" name="a" steps={steps} chosen={before} answer={one.data} />
        <Side id={id} label="After" name="b" steps={steps} chosen={after} answer={other.data} />
      </div>
      {one.data && other.data && (
        <div class="diff">
          {conversationRows(one.data.episode, other.data.episode).map((row, i) => <DiffRow key={i} row={row} />)}
        </div>
      )}
    </section>
  );
}

interface SideProps {
  id: string;
  label: string;
  name: string;
  steps: TaskStep[];
  chosen: TaskStep;
  answer: EpisodeAnswer | null;
}

function Side({ id, label, name, steps, chosen, answer }: SideProps) {
  const episode = answer?.episode;
  return (
    <div class="diff-head">
      <label class="field">
        <span>{label}</span>
        <select value={stepNumber(chosen.step)} onChange={(event) => setQuery({ [name]: event.currentTarget.value })}>
          {steps.map((one) => (
            <option key={one.step} value={stepNumber(one.step)}>step {stepNumber(one.step)}: mean {signed(one.reward_mean, 2)}, {one.solved} of {one.episodes} solved</option>
          ))}
        </select>
      </label>
      {episode && (
        <p>
          <Link to={paths.episode(id, episode.step, episode.task_id, episode.member)}>episode #{episode.member}</Link>
          <b class="figures">{signed(episode.reward)}</b>
          <OutcomeBadge solved={episode.solved} />
        </p>
      )}
    </div>
  );
}

function stepOf(steps: TaskStep[], asked: string | null): TaskStep | undefined {
  return asked === null ? undefined : steps.find((one) => stepNumber(one.step) === Number(asked));
}

/** The member to show: the first with the highest or lowest reward, or with the reward nearest to the mean. */
function memberOf(step: TaskStep, pick: Pick): number {
  const score = (reward: number) => (pick === "best" ? -reward : pick === "worst" ? reward : Math.abs(reward - (step.reward_mean ?? 0)));
  return [...step.members].sort((one, other) => score(one.reward ?? 0) - score(other.reward ?? 0))[0]?.member ?? 0;
}
