/* One step of Gymnasium's classic control environments, for all environments of a training at once.

   Every operation is that of Gymnasium, in its order and precision, so that the results are equal to the last bit:
   compile without contraction to fused multiply-add and without fast math. Powers call libm's pow, as numpy's scalars
   do (-fno-builtin: x * x may differ from it in the last bit). Constants are written as Gymnasium computes them.

   All functions take the number of environments and, by environment, states, actions, and where to write the
   observations, the rewards and whether the episode terminated. They return the number of terminated episodes, or -1
   for actions that the environments refuse; then nothing has been changed. */

#include <math.h>
#include <stdint.h>

#define PI 3.14159265358979323846

static double clip(double x, double low, double high) { return x < low ? low : x > high ? high : x; }

static int has_refused_action(int64_t count, const int64_t *actions, int64_t action_count) {
    for (int64_t i = 0; i < count; i++)
        if (actions[i] < 0 || actions[i] >= action_count) return 1;
    return 0;
}

int64_t step_cartpole(int64_t count, double *states, const int64_t *actions, float *observations, double *rewards,
                      uint8_t *terminated) {
    const double total_mass = 0.1 + 1.0, pole_mass_length = 0.1 * 0.5, tau = 0.02;
    const double max_angle = 12 * 2 * PI / 360;
    int64_t ended = 0;
    if (has_refused_action(count, actions, 2)) return -1;
    for (int64_t i = 0; i < count; i++) {
        double *s = states + 4 * i;
        double speed = s[1], angle = s[2], angular_speed = s[3];
        double cosine = cos(angle), sine = sin(angle);
        double force = actions[i] == 1 ? 10.0 : -10.0;
        double push = (force + pole_mass_length * (angular_speed * angular_speed) * sine) / total_mass;
        double angular_acceleration =
            (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3.0 - 0.1 * (cosine * cosine) / total_mass));
        double acceleration = push - pole_mass_length * angular_acceleration * cosine / total_mass;
        s[0] = s[0] + tau * speed;
        s[1] = speed + tau * acceleration;
        s[2] = angle + tau * angular_speed;
        s[3] = angular_speed + tau * angular_acceleration;
        for (int k = 0; k < 4; k++) observations[4 * i + k] = (float)s[k];
        rewards[i] = 1.0;
        terminated[i] = s[0] < -2.4 || s[0] > 2.4 || s[2] < -max_angle || s[2] > max_angle;
        ended += terminated[i];
    }
    return ended;
}

int64_t step_mountain_car(int64_t count, double *states, const int64_t *actions, float *observations, double *rewards,
                          uint8_t *terminated) {
    int64_t ended = 0;
    if (has_refused_action(count, actions, 3)) return -1;
    for (int64_t i = 0; i < count; i++) {
        double position = states[2 * i], speed = states[2 * i + 1];
        speed = clip(speed + ((double)(actions[i] - 1) * 0.001 + cos(3 * position) * -0.0025), -0.07, 0.07);
        position = clip(position + speed, -1.2, 0.6);
        if (position == -1.2 && speed < 0) speed = 0;
        states[2 * i] = position;
        states[2 * i + 1] = speed;
        observations[2 * i] = (float)position;
        observations[2 * i + 1] = (float)speed;
        rewards[i] = -1.0;
        terminated[i] = position >= 0.5 && speed >= 0;
        ended += terminated[i];
    }
    return ended;
}

/* The derivative of the state of two links of length, mass and moment of inertia 1, each with its center at 0.5. */
static void acrobot_derivative(const double *s, double torque, double *derivative) {
    const double center = 0.5, gravity = 9.8;
    double speed1 = s[2], speed2 = s[3], cosine2 = cos(s[1]), sine2 = sin(s[1]);
    double d1 = 0.25 + (1.0 + 0.25 + cosine2) + 1.0 + 1.0;
    double d2 = 0.25 + center * cosine2 + 1.0;
    double phi2 = center * gravity * cos(s[0] + s[1] - PI / 2.0);
    double phi1 = -center * pow(speed2, 2.0) * sine2 - speed2 * speed1 * sine2 +
                  1.5 * gravity * cos(s[0] - PI / 2) + phi2;
    double acceleration2 = (torque + d2 / d1 * phi1 - center * pow(speed1, 2.0) * sine2 - phi2) /
                           (0.25 + 1.0 - pow(d2, 2.0) / d1);
    derivative[0] = speed1;
    derivative[1] = speed2;
    derivative[2] = -(d2 * acceleration2 + phi1) / d1;
    derivative[3] = acceleration2;
}

static double wrap_angle(double x) {
    while (x > PI) x = x - (PI - -PI);
    while (x < -PI) x = x + (PI - -PI);
    return x;
}

int64_t step_acrobot(int64_t count, double *states, const int64_t *actions, float *observations, double *rewards,
                     uint8_t *terminated) {
    const double dt = 0.2, half = dt / 2.0;
    int64_t ended = 0;
    if (has_refused_action(count, actions, 3)) return -1;
    for (int64_t i = 0; i < count; i++) {
        double *s = states + 4 * i, torque = (double)(actions[i] - 1);
        double k1[4], k2[4], k3[4], k4[4], at[4];
        /* The fourth-order Runge-Kutta method, in one interval. */
        acrobot_derivative(s, torque, k1);
        for (int k = 0; k < 4; k++) at[k] = s[k] + half * k1[k];
        acrobot_derivative(at, torque, k2);
        for (int k = 0; k < 4; k++) at[k] = s[k] + half * k2[k];
        acrobot_derivative(at, torque, k3);
        for (int k = 0; k < 4; k++) at[k] = s[k] + dt * k3[k];
        acrobot_derivative(at, torque, k4);
        for (int k = 0; k < 4; k++) s[k] = s[k] + dt / 6.0 * (k1[k] + 2 * k2[k] + 2 * k3[k] + k4[k]);
        s[0] = wrap_angle(s[0]);
        s[1] = wrap_angle(s[1]);
        s[2] = clip(s[2], -4 * PI, 4 * PI);
        s[3] = clip(s[3], -9 * PI, 9 * PI);
        float *observation = observations + 6 * i;
        observation[0] = (float)cos(s[0]);
        observation[1] = (float)sin(s[0]);
        observation[2] = (float)cos(s[1]);
        observation[3] = (float)sin(s[1]);
        observation[4] = (float)s[2];
        observation[5] = (float)s[3];
        terminated[i] = -cos(s[0]) - cos(s[1] + s[0]) > 1.0;
        rewards[i] = terminated[i] ? 0.0 : -1.0;
        ended += terminated[i];
    }
    return ended;
}

/* The remainder with the sign of the divisor, as Python's. */
static double positive_remainder(double x, double divisor) {
    double rest = fmod(x, divisor);
    return rest < 0 ? rest + divisor : rest == 0 ? 0.0 : rest;
}

/* The torque stays in single precision, like the actions, wherever it is not combined with the state. */
int64_t step_pendulum(int64_t count, double *states, const float *actions, float *observations, double *rewards,
                      uint8_t *terminated) {
    for (int64_t i = 0; i < count; i++) {
        double angle = states[2 * i], speed = states[2 * i + 1];
        float torque = actions[i] < -2.0f ? -2.0f : actions[i] > 2.0f ? 2.0f : actions[i];
        float effort = 0.001f * powf(torque, 2.0f), push = 3.0f * torque;
        double deviation = positive_remainder(angle + PI, 2 * PI) - PI;
        rewards[i] = -(pow(deviation, 2.0) + 0.1 * pow(speed, 2.0) + (double)effort);
        speed = clip(speed + (15.0 * sin(angle) + (double)push) * 0.05, -8.0, 8.0);
        angle = angle + speed * 0.05;
        states[2 * i] = angle;
        states[2 * i + 1] = speed;
        observations[3 * i] = (float)cos(angle);
        observations[3 * i + 1] = (float)sin(angle);
        observations[3 * i + 2] = (float)speed;
        terminated[i] = 0;
    }
    return 0;
}
